"""What an environment is. One folder per environment implements these and nothing else.

A session is a pure function of (task, actions), so any server can rebuild it; or of (task, actions, their outcomes),
where outcomes come from elsewhere: see sessions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Replay = Literal["pure", "transcript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What reset or step gives back."""

    observation: str
    """The engine's raw feedback."""
    admissible_actions: list[str]
    """As the engine gives them, in its order (`help` included for ALFWorld)."""
    reward: float = 0.0
    """The engine's own; scaling is the trainer's."""
    done: bool = False
    won: bool = False
    info: dict[str, str | int | float | bool] = field(default_factory=dict[str, str | int | float | bool])

    def admits(self, action: str) -> bool:
        """Whether the action is listed; `<words>` in a listed one, as in `search[<your query>]`, stand for any text.

        Where nothing is listed, as in question answering, nothing is inadmissible.
        """
        return not self.admissible_actions or action in self.admissible_actions or any(
            len(action) > len(start) + len(end) and action.startswith(start) and action.endswith(end)
            for start, end in map(_around_placeholder, self.admissible_actions) if start or end)


def _around_placeholder(listed: str) -> tuple[str, str]:
    """What stands before and after a placeholder; nothing where there is none."""
    start, opened, rest = listed.partition("<")
    _, closed, end = rest.rpartition(">")
    return (start, end) if opened and closed else ("", "")


class Session(Protocol):
    """One live game."""

    def reset(self) -> Outcome: ...

    def step(self, action: str) -> Outcome:
        """Any string is a legal call; a bad one gets the environment's own answer. Undefined after done."""
        ...


class RecordedSession(Session, Protocol):
    """A live game of an environment with `replay = "transcript"`. Its reset is still a pure function of the task."""

    def recall(self, action: str, outcome: Outcome) -> None:
        """Takes a step that has been taken before, with what came of it then; asks nobody. Undefined after done."""
        ...


class Environment(Protocol):
    """One environment family with its tasks: thread-safe, made once per server process."""

    name: str
    engine: str
    version: str
    replay: Replay
    """`transcript`: what `open` gives are RecordedSessions, rebuilt from their outcomes and not by stepping again."""

    def splits(self) -> list[str]: ...

    def training_splits(self) -> tuple[str, str, str]:
        """The splits to train on, to choose the best checkpoint by, and to report on; no task is in two of them."""
        ...

    def task_type(self, task: str) -> str:
        """What kind of task it is, in one word: evaluations report success by it. Raises KeyError."""
        ...

    def tasks(self, split: str) -> list[str]:
        """Sorted task ids `<env>/<split>/<name>`. Raises UserError for an unknown split or missing data."""
        ...

    def digest(self, split: str) -> str:
        """blake2b over the contents of the split's tasks, sorted by id, or over what decides them: the same on every
        machine, another where any task is another. In seconds, since servers tell it of all splits when asked."""
        ...

    def task_digest(self, task: str) -> str:
        """blake2b over the content of one task. Raises KeyError for an unknown task, EnvFault for a broken one."""
        ...

    def open(self, task: str) -> Session:
        """Raises KeyError for an unknown task, EnvFault for a broken one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One finished step as prompts need it."""

    observation: str
    """Before the action."""
    action: str
    """The parsed string that the environment received."""
    admissible: bool


def recent(turns: Sequence[Turn], history: int) -> Sequence[Turn]:
    """The last `history` of them: what a prompt tells."""
    return turns[max(0, len(turns) - history) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAction:
    """A response as the environment will receive it."""

    action: str
    valid: bool
    """Well-formed; see the parser of the template."""


class PromptTemplate(Protocol):
    """Text of one step's prompt, and how its answer is read. Registered by name per environment."""

    name: str
    chat: bool
    """True: the text is one user message and goes through the tokenizer's chat template; False: raw text."""

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """The prompt for the step after `turns`; `now` is the latest outcome (== first at step 1)."""
        ...

    def parse(self, text: str) -> ParsedAction:
        """`text` is the response decoded without special tokens."""
        ...
