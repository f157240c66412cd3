"""The response format of the paper's pipeline: a thought, then an action, each in its tags."""

from __future__ import annotations

import re

from envservice.base import ParsedAction

ACTION_END = "</action>"
_CJK = re.compile("[\u4e00-\u9fff]")


def answer(thought: str, action: str) -> str:
    """Writes a well-formed answer."""
    return f"<think>{thought}</think><action>{action}{ACTION_END}"


def read_answer(text: str, *, tail: int = 30) -> ParsedAction:
    """Turns an answer into the environment's action.

    The action is the text between the first `<action>` and the first `</action>` of the lower-cased answer. If a tag is
    missing, it is the answer's last `tail` characters. The answer is valid if both action tags (in any case) and both
    think tags (in lower case) occur, and no CJK ideograph (U+4E00 to U+9FFF) does. The order of the tags does not
    matter, nor whether the action is admissible. The environment receives the action in either case.
    """
    lowered = text.lower()
    start, end = lowered.find("<action>"), lowered.find(ACTION_END)
    if start < 0 or end < 0:
        return ParsedAction(action=lowered[-tail:], valid=False)
    thought = "<think>" in text and "</think>" in text
    return ParsedAction(
        action=lowered[start + len("<action>") : end].strip(), valid=thought and not _CJK.search(text))
