"""Answers as tags: a thought, then an action. The rule by which the paper's pipeline reads them."""

from __future__ import annotations

import re

from envservice.base import ParsedAction

ACTION_END = "</action>"
_CJK = re.compile("[\u4e00-\u9fff]")


def answer(thought: str, action: str) -> str:
    """The well-formed answer."""
    return f"<think>{thought}</think><action>{action}{ACTION_END}"


def read_answer(text: str, *, tail: int = 30) -> ParsedAction:
    """Answer to environment action.

    The action is what stands between the first `<action>` and the first `</action>` of the lower-cased answer, or the
    answer's last `tail` characters where a tag is missing. Valid: both action tags (in any case) and both think tags
    (in lower case) occur, and no CJK ideograph (U+4E00 to U+9FFF) does. Neither the order of tags nor whether the
    action is admissible is looked at. The environment receives the action either way.
    """
    lowered = text.lower()
    start, end = lowered.find("<action>"), lowered.find(ACTION_END)
    if start < 0 or end < 0:
        return ParsedAction(action=lowered[-tail:], valid=False)
    thought = "<think>" in text and "</think>" in text
    return ParsedAction(
        action=lowered[start + len("<action>") : end].strip(), valid=thought and not _CJK.search(text))
