"""Folders of large models without their bytes: the headers are real, the weights are holes in a sparse file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

TOKENIZER = Path(__file__).parents[1] / "integration/deploy/explorer/walk/model/tokenizer.json"
QWEN = {
    "135m": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
             "intermediate_size": 1536, "vocab_size": 49_152, "tie_word_embeddings": True},
    "0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
             "intermediate_size": 4864, "vocab_size": 151_936, "tie_word_embeddings": True},
    "1.5b": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
             "intermediate_size": 8960, "vocab_size": 151_936, "tie_word_embeddings": True},
    "7b": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
           "intermediate_size": 18_944, "vocab_size": 152_064, "tie_word_embeddings": False},
    "32b": {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
            "intermediate_size": 27_648, "vocab_size": 152_064, "tie_word_embeddings": False},
}
PARAMETERS = {"135m": 134_515_008, "0.5b": 494_032_768, "1.5b": 1_543_714_304, "7b": 7_615_616_512,
              "32b": 32_763_876_352}


def sparse_model(folder: Path, size: str) -> Path:
    """Writes a folder that looks like Qwen2.5 of `size` from outside, in some kilobytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shape, count = QWEN[size], PARAMETERS[size]
    described = shape | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                         "max_position_embeddings": 32_768, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(described))
    shutil.copyfile(TOKENIZER, folder / "tokenizer.json")
    embeddings = shape["vocab_size"] * shape["hidden_size"]
    tensors = {"model.embed_tokens.weight": [shape["vocab_size"], shape["hidden_size"]],
               "rest": [count - embeddings]}
    header, end = {}, 0
    for name, lengths in tensors.items():
        size_bytes = 2 * lengths[0] * (lengths[1] if len(lengths) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": lengths, "data_offsets": [end, end + size_bytes]}
        end += size_bytes
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
