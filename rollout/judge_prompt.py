"""The words of the judge task: the question about an action, the answer to show, and how an answer is read.

A question follows the prompt of the turn that it asks about, so the judge reads what the policy read. An answer ends as
the environment's answers do, and has the same tags. The words are ours: the paper's text has no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envservice.response_format import ACTION_END
from services.chat import THINK, THINK_END

Verdict = str
"""`good` or `bad`, or empty for an answer that says neither."""
_VERDICT = re.compile(rf"\s*(?:(?!{THINK})<\w+>)?\s*(good|bad)\W*", re.IGNORECASE)


def question(prompt: str, action: str, *, chat: bool, stops: Sequence[str]) -> str:
    """Returns the text that asks whether `action` was good, after the prompt of its turn.

    `chat`: the text is a user's message with an instruction; otherwise raw text without one. `stops`: tags that end
    answers of the environment; the last one ends judgements.
    """
    if not chat:
        lines = prompt.removesuffix("\n")
        return f"{lines}\nJudge: {action}\n"
    return (f"{prompt}\n\nDo not act now. Judge an action instead: '{action}'. Is it a good action in the current "
            f"situation?\nReason first, within {THINK} {THINK_END} tags. Then answer {_tagged('good', stops)} or "
            f"{_tagged('bad', stops)}.")


def shown_answer(verdict: Verdict, *, chat: bool, stops: Sequence[str]) -> str:
    """Returns the answer that demonstrations show. In a conversation the thought before it is empty."""
    return f"{THINK}{THINK_END}{_tagged(verdict, stops)}" if chat else _tagged(verdict, stops)


def read_verdict(text: str, *, stops: Sequence[str]) -> Verdict:
    """Reads an answer: the one word between its thought and its end, with or without an opening tag before it."""
    said = text.partition(_end(stops))[0].rpartition(THINK_END)[2]
    found = _VERDICT.fullmatch(said)
    return found[1].lower() if found else ""


def _tagged(verdict: Verdict, stops: Sequence[str]) -> str:
    stop = _end(stops)
    opening = f"<{stop.removeprefix('</')}" if stop.startswith("</") else ""
    return f"{opening}{verdict}{stop}"


def _end(stops: Sequence[str]) -> str:
    return stops[-1] if stops else ACTION_END
