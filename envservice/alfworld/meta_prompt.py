"""ALFWorld's prompts for RLVMR: `full` and `compact` with tagged answers (envservice/text/meta_answers.py)."""

from __future__ import annotations

from collections.abc import Sequence

from envservice.alfworld.prompts import ROLE, TASK, AlfworldCompactTemplate, choices, task_of
from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.text.meta_answers import instruction, latest_answers, plan_line, plan_of, read_meta, tagged


def _rewritten(answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
    return tagged(answer, turns, goal=task_of(first).removesuffix("."), explores=("go to ",))


class AlfworldMetaTemplate:
    """One user message per turn: role, task, observations with actions, latest answers, plan, choices, instruction."""

    name = "meta"
    chat = True

    def __init__(self, history: int = 2) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn shows neither history nor plan."""
        actions = "\n ".join(f"'{action}'" for action in choices(now))
        listed = f"Your admissible actions of the current situation are: [{actions}].\n"
        if not turns:
            return f"{ROLE}\nYour current observation is: {now.observation}\n{listed}\n{_INSTRUCTION}"
        shown = recent(turns, self.history)
        start = len(turns) - len(shown) + 1
        past = "\n".join(f"[Observation {step}: '{turn.observation}', Action {step}: '{turn.action}']"
                         for step, turn in enumerate(shown, start=start))
        return (f"{ROLE} {TASK}{task_of(first)}\n"
                f"Prior to this step, you have already taken {len(turns)} step(s). Below are the most recent "
                f"{len(shown)} observations and the corresponding actions you took: {past}\n"
                f"{latest_answers(turns)}\n"
                f"You are now at step {len(turns) + 1} and your current observation is: {now.observation}\n{listed}\n"
                f"{plan_line(turns)}\n\n{_INSTRUCTION}")

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the scripted player's answer in this template's form."""
        return _rewritten(answer, first, turns)


class AlfworldCompactMetaTemplate(AlfworldCompactTemplate):
    """The compact prompt with a seventh line, the plan, and tagged answers."""

    name = "compact-meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return f"{super().render(first, turns, now)}Plan: {plan_of(turns) or '-'}\n"

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the scripted player's answer in this template's form."""
        return _rewritten(answer, first, turns)


_INSTRUCTION = instruction(failed="Nothing happens.", choose=(
    "Then choose one admissible action for the current step and present it within <action> </action> tags."))
