"""The tokenizer of a model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_TEXT = "Go to the  oven 12:\n\tnaïve café, (x=3.50) … 火 🔥 don't"
"""Holds what rules of tokenizers treat differently: spaces, digits, accents, other scripts, an apostrophe."""


def load_tokenizer(folder: str | Path) -> Any:
    """Returns the tokenizer in a Hugging Face folder, which encodes as the folder's tokenizer.json does.

    transformers builds some tokenizers anew from the class that tokenizer_config.json names. That of DeepSeek V3 names
    Llama's: its rules know no byte-level BPE, and drop every space. The model was trained with the file, so the file
    decides where the two differ. Mistral's own file beside it (tekken.json) is not read: its tokenizer has no chat
    template. Raises the errors of transformers.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    made: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False,
                                              mistral_format=False)
    file = Path(folder) / "tokenizer.json"
    if not file.exists():
        return made
    wanted = Tokenizer.from_file(str(file)).encode(_TEXT, add_special_tokens=False).ids
    if made.encode(_TEXT, add_special_tokens=False) == wanted:
        return made
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def first_tokens(tokenizer: Any) -> list[int]:
    """Returns the token that a text begins with by the tokenizer's own rule, or []: Gemma is lost without its <bos>.

    Chat templates write it themselves, so this is for raw text.
    """
    begin = tokenizer.bos_token_id
    return [begin] if begin is not None and tokenizer.encode("a")[:1] == [begin] else []
