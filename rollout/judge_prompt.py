"""The words of the judge task: the question about an action, the answer to show, and how an answer is read.

Prompt correction has its words here too: the question for a summary of mistakes, and the prompt that carries it.

A question follows the prompt of the turn that it asks about, so the judge reads what the policy read. An answer ends as
the environment's answers do, and has the same tags. The words are ours: the paper's text has no prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envservice.text.response_format import ACTION_END
from services.chat import THINK, THINK_END

Verdict = str
"""`good` or `bad`, or empty for an answer that says neither."""
_OPENING = re.compile(rf"^\s*(?!{THINK})<\w+>")
_VERDICT = re.compile(rf"(?:(?!{THINK})<\w+>\s*)?(good|bad)\W*", re.IGNORECASE)


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
    """Returns the answer that demonstrations show. With `chat` it begins with an empty thought."""
    return f"{THINK}{THINK_END}{_tagged(verdict, stops)}" if chat else _tagged(verdict, stops)


def read_verdict(text: str, *, stops: Sequence[str]) -> Verdict:
    """Returns the verdict in an answer: its only word after the thought, perhaps tagged. Empty for anything else."""
    answer = text.partition(_end(stops))[0].rpartition(THINK_END)[2]
    match = _VERDICT.fullmatch(answer.lstrip())
    return match[1].lower() if match else ""


def mistakes_question(critiques: Sequence[tuple[str, str]], *, chat: bool, stops: Sequence[str]) -> str:
    """Returns the text that asks for a summary of mistakes. `critiques`: each an action and why it was bad, or ""."""
    if not chat:
        return f"Mistakes: {'; '.join(action for action, _ in critiques)}\n"
    listed = "\n".join(f"- '{action}'{f': {why}' if why else ''}" for action, why in critiques)
    return (f"You judged these actions of yours to be bad:\n{listed}\n\nDo not act now. Sum up the mistakes that you "
            f"make most often, in a few short instructions to yourself.\nReason first, within {THINK} {THINK_END} "
            f"tags. Then answer {_tagged('your instructions', stops)}.")


def corrected(prompt: str, correction: str, *, chat: bool) -> str:
    """Returns a turn's prompt with the policy's instructions to itself; the prompt itself if there are none."""
    if not correction:
        return prompt
    lines = prompt.removesuffix("\n")
    return f"{lines}\n\nAvoid your usual mistakes: {correction}" if chat else f"{lines}\nAvoid: {correction}\n"


def split_answer(text: str, *, stops: Sequence[str]) -> tuple[str, str]:
    """Returns the thought of an answer, and its text after the thought without tags, each as one line."""
    text = text.partition(_end(stops))[0]
    thought, closed, answer = text.rpartition(THINK_END)
    answer = _OPENING.sub("", answer if closed else text)
    if THINK in answer:  # the answer was cut in its thought
        thought, answer = answer, ""
    return " ".join(thought.strip().removeprefix(THINK).split()), " ".join(answer.split())


def _tagged(verdict: Verdict, stops: Sequence[str]) -> str:
    stop = _end(stops)
    opening = f"<{stop.removeprefix('</')}" if stop.startswith("</") else ""
    return f"{opening}{verdict}{stop}"


def _end(stops: Sequence[str]) -> str:
    return stops[-1] if stops else ACTION_END
