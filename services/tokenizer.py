"""The tokenizer of a model's folder, and the bytes of its tokens."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

_TEXT = "Go to the  oven 12:\n\tnaïve café, (x=3.50) … 火 🔥 don't"
"""Holds what rules of tokenizers treat differently: spaces, digits, accents, other scripts, an apostrophe."""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
_OF_SYMBOL = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))}
"""Maps each character in which byte-level vocabularies are written to its byte. Bytes that print stand for themselves,
the others are numbered from 256 on."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A byte in a vocabulary of pieces, for characters that no piece has."""
_SPACE = "\u2581"
"""Stands for a space in the pieces of sentencepiece."""


def load_tokenizer(folder: str | Path) -> Any:
    """Returns the tokenizer in a Hugging Face folder, which encodes as the folder's tokenizer.json does.

    transformers builds some tokenizers anew from the class that tokenizer_config.json names. That of DeepSeek V3 names
    Llama's: its rules know no byte-level BPE, and drop every space. The model was trained with the file, so the file
    decides where the two differ. Mistral's own file next to it (tekken.json) is not read: its tokenizer has no chat
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


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """Returns a token's own bytes, which may be a part of a character.

    Decoding such a token alone would give the replacement character.
    """
    added, byte_level = _vocabulary_facts(tokenizer)
    if token in added:
        return added[token]
    piece = tokenizer.convert_ids_to_tokens(token)
    if piece is None:  # a row of the embedding that pads its size
        return b""
    if byte_level and all(symbol in _OF_SYMBOL for symbol in piece):
        return bytes(_OF_SYMBOL[symbol] for symbol in piece)
    if byte := _BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    if _SPACE in piece:
        return str(piece).replace(_SPACE, " ").encode()
    return str(tokenizer.decode([token])).encode()


@lru_cache(maxsize=4)
def _vocabulary_facts(tokenizer: Any) -> tuple[dict[int, bytes], bool]:
    """Returns the bytes of added tokens, and whether pieces are written byte by byte. transformers makes the table of
    added tokens anew at each call, and an answer has hundreds of tokens."""
    added = {number: str(one.content).encode() for number, one in tokenizer.added_tokens_decoder.items()}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules: bytes = b"" if backend is None or backend.decoder is None else backend.decoder.__getstate__()
    return added, b"ByteLevel" in rules
