"""The prompting baselines of the papers' tables: direct, ReAct (2210.03629) and Reflexion (2303.11366).

The papers at hand print no prompts of their baselines, so these words are ours, and hold no worked examples.

    direct      the prompt of training (env.prompt), made again in every turn
    react       one conversation per episode; each answer is a thought and an action
    reflexion   react; after a lost trial the model writes a reflection, which its next trials of the task read
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from envservice.base import Outcome, ParsedAction, PromptTemplate, Turn
from envservice.text.response_format import answer, without_thought
from services.chat import THINK, THINK_END, Message
from services.errors import UserError

_ACTION = re.compile(r"^[ \t>*]*action[ \t*]*(?:\d+[ \t]*)?:[ \t*]*(.+)$", re.IGNORECASE | re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t>*]*observation[ \t*]*(?:\d+[ \t]*)?:", re.IGNORECASE | re.MULTILINE)
_RULES = (
    "Solve the task below in a text environment, one action at a time. Answer each observation in two lines:\n"
    "Thought: what you know now, and what to do next\n"
    "Action: one action, "
)
_AS_LISTED = "written as the environment lists it"
_AS_INSTRUCTED = "in the form that the instructions below ask for; the reasoning goes into the line above"
_REFLECT = (
    "The trial above did not solve its task. Find the decision that went wrong, and write a plan of a few sentences "
    "for the next trial of the same task: which actions to avoid, and which to take instead. Write the plan only."
)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One trial of a task so far. `answers[i]` led to `turns[i]`."""

    first: Outcome
    now: Outcome
    turns: list[Turn]
    answers: list[str]


class PromptingPolicy(Protocol):
    """Makes the messages that a model is asked with, and reads its answers."""

    @property
    def reflects(self) -> bool:
        """Whether a lost trial is followed by a reflection and another trial."""
        ...

    def messages(self, trial: Trial, memory: Sequence[str]) -> list[Message]:
        """Returns the conversation whose answer is the next action. `memory`: reflections on earlier trials."""
        ...

    def parse(self, text: str) -> ParsedAction:
        """Reads the action in an answer, in the form that the environment takes."""
        ...


@dataclass(frozen=True, slots=True)
class Direct:
    """Asks with the environment's own prompt: one user message per turn, without a conversation."""

    template: PromptTemplate
    reflects: bool = False

    def messages(self, trial: Trial, memory: Sequence[str]) -> list[Message]:
        del memory
        return [{"role": "user", "content": self.template.render(trial.first, trial.turns, trial.now)}]

    def parse(self, text: str) -> ParsedAction:
        return self.template.parse(text)


@dataclass(frozen=True, slots=True)
class ReAct:
    """Keeps the entire episode as a conversation. Only the newest observation lists its admissible actions.

    If the environment lists no actions (search QA), the conversation begins with its prompt, which shows their form.
    """

    template: PromptTemplate
    reflects: bool = False

    def messages(self, trial: Trial, memory: Sequence[str]) -> list[Message]:
        seen = [*(turn.observation for turn in trial.turns), trial.now.observation]
        texts = [f"Observation: {text}" for text in seen]
        texts[0] = "\n\n".join([*self._rules(trial.first), *_remembered(memory), texts[0]])
        if trial.now.admissible_actions:
            texts[-1] += f"\nAdmissible actions: {'; '.join(trial.now.admissible_actions)}"
        messages: list[Message] = []
        for text, reply in zip(texts, trial.answers, strict=False):
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": counted_part(reply)}]
        return [*messages, {"role": "user", "content": texts[-1]}]

    def parse(self, text: str) -> ParsedAction:
        """Reads the first `Action:` line. An answer without one is invalid, and its last line is the action. It is also
        invalid if the prompt's form finds no action in the line."""
        counted = counted_part(text)
        match = _ACTION.search(counted)
        action = self._read(match[1].rstrip(" \t*") if match else (counted.strip().splitlines() or [""])[-1])
        return ParsedAction(action=action, valid=match is not None and bool(action))

    def _rules(self, first: Outcome) -> list[str]:
        """Raises UserError if neither the actions nor the prompt would show the model the form of an action."""
        if first.admissible_actions:
            return [_RULES + _AS_LISTED]
        if not self.template.chat:
            raise UserError("the environment lists no actions, and the raw text of env.prompt has no instructions",
                            "set env.prompt=full, or another prompt for chat models")
        return [_RULES + _AS_INSTRUCTED, self.template.render(first, (), first)]

    def _read(self, line: str) -> str:
        """Returns the action in a line that is the action itself, or holds it in the tags of the prompt."""
        tagged = self.template.parse(f"{THINK}{THINK_END}{line}")
        return (tagged if tagged.valid else self.template.parse(answer("", line))).action


def counted_part(text: str) -> str:
    """Returns an answer after its thought in tags, up to the first `Observation:` line.

    The thought of a reasoning model may name actions that it decides against, and models continue with invented
    observations.
    """
    spoken = without_thought(text)
    made_up = _OBSERVATION.search(spoken)
    return (spoken if made_up is None else spoken[: made_up.start()]).rstrip()


def reflection_on(trial: Trial, memory: Sequence[str]) -> list[Message]:
    """Returns the conversation that asks for a reflection on a lost trial."""
    steps = [f"Observation: {turn.observation}\nAction: {turn.action}" for turn in trial.turns]
    texts = [*_remembered(memory), *steps, f"Observation: {trial.now.observation}", _REFLECT]
    return [{"role": "user", "content": "\n\n".join(texts)}]


def _remembered(memory: Sequence[str]) -> list[str]:
    if not memory:
        return []
    return ["Your plans from earlier, lost trials of this task:\n" + "\n".join(f"- {text}" for text in memory)]


_POLICIES: Mapping[str, type[Direct] | type[ReAct]] = {"direct": Direct, "react": ReAct, "reflexion": ReAct}
NAMES = tuple(_POLICIES)


def make_policy(name: str, template: PromptTemplate) -> PromptingPolicy:
    """Makes the policy of a name in NAMES."""
    return _POLICIES[name](template, reflects=name == "reflexion")
