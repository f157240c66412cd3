"""ScienceWorld's prompts for RLVMR: `full` and `compact` with tagged answers (envservice/text/meta_answers.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from envservice.base import Outcome, ParsedAction, Turn
from envservice.scienceworld.prompts import (
    CHOOSE,
    UNKNOWN,
    ScienceworldCompactTemplate,
    look_of,
    situation,
    task_of,
)
from envservice.text.meta_answers import instruction, latest_answers, plan_line, plan_of, read_meta, tagged

EXPLORES = ("go to ", "teleport to ", "look ")
"""First words of the gold paths' actions that find out something."""


def _rewritten(answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
    """Rewrites an answer of the gold path. The goal is the first sentence of the task; others tell how to reach it."""
    return tagged(answer, turns, goal=task_of(first).partition(".")[0], explores=EXPLORES)


class ScienceworldMetaTemplate:
    """One user message: as `full`, with the latest answers, the plan, and an instruction that asks for one tag."""

    name = "meta"
    chat = True

    def __init__(self, history: int = 2) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn shows neither history nor plan."""
        said = [latest_answers(turns, partial(look_of, first=first))] if turns else []
        plan = [plan_line(turns), ""] if turns else []
        return "\n".join([*situation(first, turns, now, history=self.history, said=said), "", *plan, _INSTRUCTION])

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the gold path's answer in this template's form."""
        return _rewritten(answer, first, turns)


class ScienceworldCompactMetaTemplate(ScienceworldCompactTemplate):
    """The compact prompt with a fifth line, the plan, and tagged answers."""

    name = "compact-meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return f"{super().render(first, turns, now)}Plan: {plan_of(turns) or '-'}\n"

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the gold path's answer in this template's form."""
        return _rewritten(answer, first, turns)


_INSTRUCTION = instruction(failed=UNKNOWN, choose=CHOOSE)
