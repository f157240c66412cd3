"""What runs need of an environment besides its games: one EnvironmentSpec per folder, found by registry.py.

Light commands import the module that holds an EnvironmentSpec. Import slow or optional packages inside the functions
that need them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from envservice.base import Environment, Outcome, PromptTemplate, Session
from envservice.response_format import ACTION_END
from envservice.wire.schemas import MAX_ACTIONS
from services.config.tree import EnvSection, SftSection
from services.findings import Finding

LONGEST = MAX_ACTIONS + 1
"""Steps of an episode that the API can carry: a step repeats all actions before it."""


class Demonstrator(Protocol):
    """The scripted player of one episode. It knows what it has read so far, and nothing else."""

    def act(self, now: Outcome) -> str:
        """The answer to the latest outcome, in the form that the templates parse. Called once in every step, also in
        those whose action is then replaced by noise; what that led to shows in the next outcome."""
        ...


def any_admissible(action: str, now: Outcome, rng: random.Random) -> str:
    """Noise: any of the admissible actions; `action` itself where the environment lists none."""
    return rng.choice(now.admissible_actions or [action])


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """How demonstrations for the cold start are played; rollout/demonstrations.py."""

    player: Callable[[Outcome, random.Random, SftSection], Demonstrator]
    """Makes the player of one episode from its first outcome. All its chance comes from the generator given."""
    disturb: Callable[[str, Outcome, random.Random], str] = any_admissible
    """What is executed in the place of an action where noise is wanted."""
    disguise: Callable[[Session, int], Session] | None = None
    """The same game in other words, by a seed, where following it teaches more: every second demonstration is one."""
    names: Literal["numbered", "words"] = "words"
    """What answers copy from prompts, for the tokenizer of a model made here: names that a number follows, between
    phrases that never change; or any word, and what stands in [brackets]."""


def opens(environment: Environment, task: str) -> None:
    """The cheap check of environments in which opening a task is cheap."""
    environment.open(task)


def nothing_elsewhere(env: EnvSection) -> None:
    """Of environments that need nothing beside their server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """An environment as runs choose it: by `env.name`. Raises ValueError for a length that the API cannot carry."""

    open: Callable[[EnvSection], Environment]
    """The environment that a config asks for. Raises UserError for missing data or packages."""
    prompts: Mapping[str, Callable[[int], PromptTemplate]]
    """`env.prompt` to a maker of the template, which is given `env.history`."""
    describe: Callable[[EnvSection], str]
    """What would be played, for the plan, in one line. From the config and the machine's variables; reads no data."""
    max_steps: int = LONGEST
    """The largest `env.max_steps`."""
    holding: Callable[[EnvSection, str], Environment] | None = None
    """The environment that a task id belongs to, where that may be another than `open` gives. Raises as `open` does,
    and KeyError for an id of none."""
    check: Callable[[Environment, str], None] = opens
    """The cheap check of one task, before anything starts. Raises EnvFault for a broken one."""
    reachable: Callable[[EnvSection], None] = nothing_elsewhere
    """One question to whatever a server asks elsewhere, before anything starts. Raises UserError where no right answer
    comes in time."""
    threaded: Callable[[EnvSection], bool] = field(default=lambda _: False)
    """Whether a step takes so long, or waits so long, that the server should take it in a thread of its own."""
    session_bytes: int = 0
    """Memory that each live session takes outside the server's own process; servers hold no more than fit."""
    stops: tuple[str, ...] = (ACTION_END,)
    """Tags that end an answer: nothing after the first of them is read. A model made here has each as one token."""
    teacher: Teacher | None = None
    """None: no cold start."""
    findings: Callable[[], Iterable[Finding]] = tuple
    """`gagpo doctor`: data and optional packages on this machine. Light."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_steps <= LONGEST:
            raise ValueError(f"max_steps is {self.max_steps}, and an episode has 1 to {LONGEST} steps")
