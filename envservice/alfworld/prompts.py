"""ALFWorld's prompts, with the parsers of their answers.

    full            the fields, order and quoting of the paper's pipeline, as one user message
    compact         the same in a tenth of the words, for models of less than a million parameters
    memory          compact after three lines of memory: the object in hand, and where objects of the task were seen or
                    placed
    memory-chat     the same for instruct models
    meta            full with RLVMR's tagged answers (envservice/text/response_format.py)
    compact-meta    compact with tagged answers

Answers to the first four have the form `<think>...</think><action>...</action>`, and the same rule reads them, so that
"invalid" means the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from envservice.alfworld.memory import GameMemory, kind_of, recall
from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.text.response_format import (
    TaggedAnswers,
    instruction,
    latest_answers,
    plan_line,
    plan_of,
    read_lowered,
)

TASK = "Your task is to: "
"""The text before the task sentence in the first observation."""


def task_of(first: Outcome) -> str:
    """Returns the task sentence with its full stop, or "" if the observation has none."""
    return first.observation.partition(TASK)[2].strip()


def choices(now: Outcome) -> list[str]:
    """Returns the admissible actions that prompts show: all except `help`."""
    return [action for action in now.admissible_actions if action != "help"]


ROLE = "You are an expert agent operating in the ALFRED Embodied Environment."
_CHOOSE = "Then choose one admissible action for the current step and present it within <action> </action> tags."
_INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason step by step about the current situation; this reasoning MUST be enclosed within <think> </think> "
    f"tags.\n{_CHOOSE}"
)


def _situation(first: Outcome, turns: Sequence[Turn], now: Outcome, history: int, *, answers: str = "") -> str:
    """Returns the full prompt up to the admissible actions. `answers`: lines that follow the past turns."""
    shown = recent(turns, history)
    past = "\n".join(f"[Observation {step}: '{turn.observation}', Action {step}: '{turn.action}']"
                     for step, turn in enumerate(shown, start=len(turns) - len(shown) + 1))
    return (
        f"{ROLE} {TASK}{task_of(first)}\n"
        f"Prior to this step, you have already taken {len(turns)} step(s). Below are the most recent {len(shown)} "
        f"observations and the corresponding actions you took: {past}\n"
        f"{answers}You are now at step {len(turns) + 1} and your current observation is: {now.observation}\n"
    )


def _first_situation(now: Outcome) -> str:
    return f"{ROLE}\nYour current observation is: {now.observation}\n"


def _admissible(now: Outcome) -> str:
    actions = "\n ".join(f"'{action}'" for action in choices(now))
    return f"Your admissible actions of the current situation are: [{actions}]."


class AlfworldFullTemplate:
    """One user message per turn: role, task, recent observations with actions, current observation, choices."""

    name = "full"
    chat = True

    def __init__(self, history: int = 2) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn has no task line and no history; if `history` is 0, no turn has them."""
        shows_past = turns and self.history
        opening = _situation(first, turns, now, self.history) if shows_past else _first_situation(now)
        return f"{opening}{_admissible(now)}\n\n{_INSTRUCTION}"

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text)


class AlfworldCompactTemplate:
    """Six lines of raw text: task, recent actions, observation, actions here, places seen, places not yet seen.

    Objects to take and places to go to are listed by kind ("drawer 1 2 4"), which halves the length. Actions that never
    help (examine, inventory, look) are left out. Inadmissible actions are marked as failed: "Nothing happens." leaves
    no other trace, and without the mark a model believes that its action succeeded.
    """

    name = "compact"
    chat = False

    def __init__(self, history: int = 3) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        done = "; ".join(turn.action + ("" if turn.admissible else " failed") for turn in recent(turns, self.history))
        been = {turn.action for turn in turns if turn.admissible}
        going = [action for action in choices(now) if action.startswith(_GO)]
        return (
            f"Task: {task_of(first).removesuffix('.')}\nDone: {done or '-'}\n"
            f"Now: {_without_banner(now.observation)}\nActions: {_here(choices(now))}\n"
            f"Seen: {_by_kind(action.removeprefix(_GO) for action in going if action in been)}\n"
            f"New: {_by_kind(action.removeprefix(_GO) for action in going if action not in been)}\n"
        )

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text)


_GO = "go to "
_TAKE = re.compile(r"take (.+) from (.+)")
_IDLE = ("examine ", "inventory", "look")


def _here(actions: Sequence[str]) -> str:
    """Lists the actions at this place: objects to take by receptacle and kind, then the other actions in full."""
    takes: dict[str, list[str]] = {}
    rest: list[str] = []
    for action in actions:
        if match := _TAKE.fullmatch(action):
            takes.setdefault(match[2], []).append(match[1])
        elif not action.startswith((_GO, *_IDLE)):
            rest.append(action)
    return "; ".join([*(f"take from {place}: {_by_kind(things)}" for place, things in takes.items()), *rest]) or "-"


def _by_kind(names: Iterable[str]) -> str:
    """Joins drawer 2, shelf 1, drawer 1 to `drawer 1 2, shelf 1`. Returns a dash for no names."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, number = name.rpartition(" ")
        kinds.setdefault(kind, []).append(number)
    return ", ".join(" ".join([kind, *sorted(numbers, key=lambda n: (len(n), n))])
                     for kind, numbers in kinds.items()) or "-"


def _without_banner(observation: str) -> str:
    """Removes banner, task and list of receptacles from the first observation. The choices repeat the list."""
    if TASK not in observation:
        return observation.strip()
    room = observation.partition(TASK)[0].strip().rpartition("\n\n")[2]
    return room.partition(". ")[0] + "."


_FORM = "Answer with <think>a few words</think><action>one action</action>."
_STATES = {"heat": "hot", "cool": "cool", "clean": "clean"}


class AlfworldMemoryTemplate(AlfworldCompactTemplate):
    """The compact prompt after three lines: the object in hand, the task's objects still to bring, and those placed.

    The scripted player decides by these facts, and a few past actions do not reveal them. Without them a model that
    imitates it has to guess. One that has placed the first of two objects forgets where it saw the second, or takes the
    first out again.
    """

    name = "memory"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        memory = recall(first, turns, now)
        seen, placed = _objects(memory, task_of(first))
        return f"Held: {_held(memory)}\nFound: {seen}\nPlaced: {placed}\n{super().render(first, turns, now)}"


class AlfworldMemoryChatTemplate(AlfworldMemoryTemplate):
    """The same as one user message that names the form of answers, for instruct models."""

    name = "memory-chat"
    chat = True

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return super().render(first, turns, now) + _FORM


def _held(memory: GameMemory) -> str:
    """Returns the object in hand with its states, such as `mug 1 hot`, or a dash."""
    states = (_STATES[verb] for verb in sorted(memory.treated[memory.held]))
    return " ".join([memory.held, *states]) if memory.held else "-"


def _objects(memory: GameMemory, task: str) -> tuple[str, str]:
    """Returns where objects of the task's kinds lie, as `mug 1 in desk 1, mug 2 in shelf 1` or a dash, in two lists.

    The second list has those that are done: in a receptacle of a kind that the task names, and treated as it asks.
    """
    named = set(re.findall(r"\w+", task.lower()))
    wanted = {verb for verb, state in _STATES.items() if {verb, state} & named}
    seen, placed = [], []
    for place, things in memory.contents.items():
        for thing in things:
            if kind_of(thing) in named:
                done = kind_of(place) in named and wanted <= memory.treated[thing]
                (placed if done else seen).append(f"{thing} in {place}")
    return ", ".join(seen) or "-", ", ".join(placed) or "-"


class _TaggedAnswers(TaggedAnswers):
    explores = ("go to ",)

    def goal(self, first: Outcome) -> str:
        return task_of(first).removesuffix(".")


class AlfworldMetaTemplate(_TaggedAnswers, AlfworldFullTemplate):
    """The full prompt with the latest answers and the plan, and tagged answers."""

    name = "meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn shows neither history nor plan."""
        if not turns:
            return f"{_first_situation(now)}{_admissible(now)}\n\n{_META_INSTRUCTION}"
        opening = _situation(first, turns, now, self.history, answers=f"{latest_answers(turns)}\n")
        return f"{opening}{_admissible(now)}\n\n{plan_line(turns)}\n\n{_META_INSTRUCTION}"


class AlfworldCompactMetaTemplate(_TaggedAnswers, AlfworldCompactTemplate):
    """The compact prompt with a seventh line, the plan, and tagged answers."""

    name = "compact-meta"

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        return f"{super().render(first, turns, now)}Plan: {plan_of(turns) or '-'}\n"


_META_INSTRUCTION = instruction(failed="Nothing happens.", choose=_CHOOSE)
