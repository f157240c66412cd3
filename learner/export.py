"""A model's folder as transformers and vLLM load it: weights, config and tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from services.files import open_as_folder, sync_tree, write_whole

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "added_tokens.json",
                   "chat_template*")
GENERATION = "generation_config.json"


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises OSError for an error of the safetensors writer, which has one type for all, also for a full disk."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def write_export(folder: Path, tensors: Mapping[str, Tensor], *, like: Path, dtype: str) -> None:
    """Writes the weights, with config and tokenizer of the model folder `like`. `dtype` is that of the weights.

    A tied head is left out, as such a file has it. Of the generation config only the special tokens stay, as runs
    neither truncate nor penalise. Takes no part in collectives, so any thread may call it. Raises
    OSError, and can then be called again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with disk_errors():
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    for pattern in TOKENIZER_FILES:
        for path in like.glob(pattern):
            shutil.copyfile(path, folder / path.name)
    if (like / GENERATION).exists():
        given = json.loads((like / GENERATION).read_text())
        kept = {name: value for name, value in given.items() if name.endswith("_token_id")}
        (folder / GENERATION).write_text(json.dumps(kept, indent=2) + "\n")
    architecture = json.loads((like / "config.json").read_text())
    architecture.pop("torch_dtype", None)
    architecture["dtype"] = dtype
    sync_tree(folder)
    write_whole(folder / "config.json", json.dumps(architecture, indent=2) + "\n")  # last: marks it as complete
    open_as_folder(folder)
