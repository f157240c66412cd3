"""The thought that an answer begins with, in dialects that show it apart from the text.

Its parts put together are the answer's own characters. So an agent that sends an answer back as it came continues the
call's row of tokens. A thought that was cut has no closing tag, which its block has to say:

    <think>hm</think>go    Thought("hm", closed=True), "go"
    <think>hm              Thought("hm", closed=False), ""
    go                     None, "go"
"""

from __future__ import annotations

from typing import NamedTuple

from services.chat import THINK, THINK_END


class Thought(NamedTuple):
    """The text between the tags of a thought, with its white space."""

    text: str
    closed: bool = True

    def __str__(self) -> str:
        return THINK + self.text + THINK_END * self.closed


def split_thought(content: str) -> tuple[Thought | None, str]:
    """Returns the thought that a content begins with, and the rest."""
    if not content.startswith(THINK):
        return None, content
    inside, end, rest = content.removeprefix(THINK).partition(THINK_END)
    return Thought(inside, bool(end)), rest
