"""Control tokens in text that others wrote: they are read as the characters that they are.

A page with `<|im_end|>` in it would end the user's turn, and the text behind it could forge the turns that follow. So
each control token in a message is cut in two before the chat template sees it, and a prompt is tokenized in the parts
between the cuts. A prompt without such a token is tokenized as a whole.

Not covered: marks of a template that are no tokens, such as Llama 2's `[INST]`, and prompts of raw text, which have no
turns and may write control tokens themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

CUT = "\ufdd0"
"""Stands where a token is cut. Unicode gives this code point to programs, and never to a character."""
_MARKS = ("<>", "[]")
"""First and last character of a mark."""


def control_tokens(tokenizer: Any, tags: Collection[str], written: Iterable[int] = ()) -> re.Pattern[str] | None:
    """Returns a pattern of the control tokens of a tokenizer, or None if it has none.

    They are its special tokens, and those of `written` (the tokens of a conversation in its template) that look like
    marks: the marks of DeepSeek's turns are not special. `tags` are no control tokens: prompts name them.
    """
    added = tokenizer.added_tokens_decoder
    control = {token.content for token in added.values() if token.special}
    control |= {added[i].content for i in written
                if i in added and added[i].content[0] + added[i].content[-1] in _MARKS}
    # A longer token comes first, as in the tokenizer. One character cannot be cut.
    chosen = sorted((text for text in control - set(tags) if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, chosen))) if chosen else None


def cut(value: Any, control: re.Pattern[str] | None) -> Any:
    """Returns a text, or a message with all texts in it, with each control token cut in two."""
    if control is None:
        return value
    if isinstance(value, str):
        return control.sub(_in_two, value)
    if isinstance(value, Mapping):
        return {key: cut(part, control) for key, part in cast("Mapping[str, Any]", value).items()}
    return [cut(part, control) for part in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def _in_two(match: re.Match[str]) -> str:
    return f"{match[0][0]}{CUT}{match[0][1:]}"


def tokens(tokenizer: Any, text: str) -> list[int]:
    """Returns the tokens of a prompt whose control tokens were cut where others wrote them."""
    return [i for part in text.split(CUT) for i in tokenizer.encode(part, add_special_tokens=False)]
