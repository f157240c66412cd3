"""Prompts whose answers begin with one kind of meta-reasoning, as RLVMR trains (arXiv 2507.22844).

An answer is `<planning>...</planning><action>...</action>`, or the same with explore, reflection or monitor in place of
planning. Later prompts show the latest plan again. The form, the rule for a valid answer and the fields of the prompt
are those of the authors' code (RLVMR in digitalhuman); the sentences are ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from envservice.alfworld.prompts import ROLE, TASK, AlfworldCompactTemplate, choices, task_of
from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.response_format import ACTION_END, has_ideograph, read_answer

TAGS = ("planning", "explore", "reflection", "monitor")
SHOWN_ANSWERS = 3
"""Number of latest answers that the full prompt shows in whole."""
_ACTION = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
_BLOCK = re.compile(rf"<({'|'.join(TAGS)})>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def read_meta(text: str) -> ParsedAction:
    """Reads an answer. Its action is empty if it does not have exactly one.

    The answer is valid if it has exactly one action, exactly one tagged block that is not empty and begins before the
    action, and no CJK ideograph. `tag` is the block's name in a valid answer; `kept` is the whole answer.
    """
    actions, blocks = list(_ACTION.finditer(text)), list(_BLOCK.finditer(text))
    valid = (len(actions) == len(blocks) == 1 and blocks[0].start() < actions[0].start()
             and bool(blocks[0][2].strip()) and not has_ideograph(text))
    return ParsedAction(action=actions[0][1].strip() if len(actions) == 1 else "", valid=valid, kept=text,
                        tag=blocks[0][1].lower() if valid else "")


def plan_of(turns: Sequence[Turn]) -> str:
    """Returns the latest plan that is not empty, or ""."""
    plans = (found[2].strip() for turn in turns for found in _BLOCK.finditer(turn.kept)
             if found[1].lower() == "planning")
    return next(reversed([plan for plan in plans if plan]), "")


def tagged(answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
    """Rewrites a scripted player's answer with a tag.

    The first turn plans, a turn after an inadmissible action reflects, one that goes to a new place explores, and any
    other monitors.
    """
    action, found = read_answer(answer).action, _THOUGHT.search(answer)
    thought = found[1] if found else action
    if not turns:
        tag, thought = "planning", f"{thought}, then {task_of(first).removesuffix('.')}"
    elif not turns[-1].admissible:
        tag, thought = "reflection", f"{turns[-1].action} failed, {thought}"
    elif action.startswith("go to ") and all(turn.action != action for turn in turns):
        tag = "explore"
    else:
        tag = "monitor"
    return f"<{tag}>{thought}</{tag}><action>{action}{ACTION_END}"


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
        latest = recent(turns, SHOWN_ANSWERS)
        said = "\n".join(f"[Observation {step}: '{turn.observation}', answer: '{turn.kept}']"
                         for step, turn in enumerate(latest, start=len(turns) - len(latest) + 1))
        return (f"{ROLE} {TASK}{task_of(first)}\n"
                f"Prior to this step, you have already taken {len(turns)} step(s). Below are the most recent "
                f"{len(shown)} observations and the corresponding actions you took: {past}\n"
                f"Your latest answers were:\n{said}\n"
                f"You are now at step {len(turns) + 1} and your current observation is: {now.observation}\n{listed}\n"
                f"Your plan so far is: {plan_of(turns) or 'No plan.'} Keep to it.\n\n{_INSTRUCTION}")

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the scripted player's answer in this template's form."""
        return tagged(answer, first, turns)


class AlfworldCompactMetaTemplate(AlfworldCompactTemplate):
    """The compact prompt with a seventh line, the plan, and tagged answers."""

    name = "compact-meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return f"{super().render(first, turns, now)}Plan: {plan_of(turns) or '-'}\n"

    def parse(self, text: str) -> ParsedAction:
        return read_meta(text)

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the scripted player's answer in this template's form."""
        return tagged(answer, first, turns)


_INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason in one short sentence, within exactly one of these pairs of tags:\n"
    "<planning> </planning>: lay out all steps of the whole task, as step 1, step 2 and so on. Use it at the start, or "
    "when the plan turned out wrong.\n"
    "<explore> </explore>: name places, objects or actions that were not tried yet. Use it when something is missing "
    "or unexpected.\n"
    "<reflection> </reflection>: say why the last actions failed and what to do instead. 'Nothing happens.' means that "
    "an action failed.\n"
    "<monitor> </monitor>: recall the current part of the plan and name the next action. Use it when all goes as "
    "planned.\n"
    "Then choose one admissible action for the current step and present it within <action> </action> tags."
)
