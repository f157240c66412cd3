"""The response format of the paper's pipeline: a thought, then an action, each in its tags."""

from __future__ import annotations

import re
from dataclasses import replace

from envservice.base import ParsedAction
from services.chat import THINK, THINK_END

ACTION_END = "</action>"
_OPENS, _CLOSES = (re.compile(tag, re.IGNORECASE | re.ASCII) for tag in ("<action>", ACTION_END))
_CJK = re.compile("[\u4e00-\u9fff]")


def has_ideograph(text: str) -> bool:
    """Says whether a CJK ideograph (U+4E00 to U+9FFF) occurs, which makes an answer invalid."""
    return _CJK.search(text) is not None


def closed(text: str, end: str, flags: re.RegexFlag = re.NOFLAG) -> str:
    """Returns a text up to the last closing tag `end`, "" without one. No pattern `<tag>(.*?)</tag>` matches after it.

    Where no tag closes them, such a pattern reads the whole rest from each opening tag on, and a model that has got
    stuck repeats one up to the end of its answer.
    """
    ends = [match.end() for match in re.finditer(re.escape(end), text, flags)]
    return text[:ends[-1]] if ends else ""


def answer(thought: str, action: str) -> str:
    """Writes a well-formed answer."""
    return f"<think>{thought}</think><action>{action}{ACTION_END}"


def without_thought(text: str) -> str:
    """Returns what an answer says after its thought, or "" if the thought does not end.

    The tag that opens the thought may be missing: some chat templates write it at the end of the prompt.
    """
    return text.rpartition(THINK_END)[2].partition(THINK)[0].strip()


def read_answer(text: str, *, tail: int = 30) -> ParsedAction:
    """Turns an answer into the environment's action, as the model wrote it.

    The action is the text between the first `<action>` and the first `</action>`, in any case of the tags. If a tag is
    missing, it is the answer's last `tail` characters. The answer is valid if both action tags (in any case) and both
    think tags (in lower case) occur, and no CJK ideograph (U+4E00 to U+9FFF) does. The order of the tags does not
    matter, nor whether the action is admissible. The environment receives the action in either case.
    """
    opens, closes = _OPENS.search(text), _CLOSES.search(text)
    if opens is None or closes is None:
        return ParsedAction(action=text[-tail:], valid=False)
    thought = "<think>" in text and "</think>" in text
    return ParsedAction(action=text[opens.end() : closes.start()].strip(), valid=thought and not has_ideograph(text))


def read_lowered(text: str, *, tail: int = 30) -> ParsedAction:
    """Reads an answer as read_answer does, and puts the action in lower case.

    The published pipelines of ALFWorld, WebShop and ScienceWorld do that: their games know lower-case actions alone.
    """
    parsed = read_answer(text, tail=tail)
    return replace(parsed, action=parsed.action.lower())
