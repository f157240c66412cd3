"""EnvironmentSpec: everything that runs need of an environment besides its games. registry.py finds it by name.

Light commands import the module that holds an EnvironmentSpec, so import slow or optional packages inside functions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from envservice.base import Environment, Outcome, PromptTemplate, Session
from envservice.text.response_format import ACTION_END
from envservice.text.tool_calls import Tool
from envservice.wire import MAX_ACTIONS
from services.config.tree import EnvSection, SftSection
from services.errors import UserError

LONGEST = MAX_ACTIONS + 1
"""The most steps of an episode. The API bounds them, since a step carries all actions before it."""


Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check of `gagpo doctor`. `fix` is a command or an action; it is empty if nothing is wrong."""

    check: str
    status: Status
    detail: str
    fix: str = ""


class Demonstrator(Protocol):
    """The scripted player of one episode. It knows only what it has read so far."""

    def act(self, now: Outcome) -> str:
        """Returns the answer to the latest outcome, in the form that the templates parse.

        It is called once in every step. Noise may replace the action; the next outcome shows what that led to.
        """
        ...


class Disturb(Protocol):
    """The noise of demonstrations."""

    def __call__(self, action: str, first: Outcome, now: Outcome, rng: random.Random, /) -> str:
        """Returns what to execute instead of `action`, after the first outcome of the episode and its latest one."""
        ...


def any_admissible(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns a random admissible action as noise, or `action` itself if the environment lists none."""
    del first
    return rng.choice(now.admissible_actions or [action])


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The scripted play of demonstrations for the cold start, which rollout/demonstrations.py makes."""

    player: Callable[[Outcome, random.Random, SftSection], Demonstrator]
    """Makes the player of one episode from its first outcome. The player draws from the given generator alone."""
    disturb: Disturb = any_admissible
    """Makes the noise. Mistakes that agents make are good noise: the steps after them show the way out."""
    disguise: Callable[[Session, int], Session] | None = None
    """Wraps a session so that it shows other words, drawn by a seed. If set, every second demonstration plays one."""
    names: Literal["numbered", "words"] = "words"
    """The kind of words that answers copy from prompts. The tokenizer of a model made here has each as one token.
    `numbered`: object names with their numbers, between fixed phrases. `words`: all words, and the text in
    [brackets]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTurn:
    """A turn of a lost episode, as the archive keeps it."""

    observation: str
    """The observation before the action."""
    action: str
    admissible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEpisode:
    """An environment's account of a lost episode, in its own words."""

    stage: str
    """The first part of the task that was not done."""
    mistakes: Mapping[str, int]
    """Number of inadmissible actions by kind of mistake."""


Explain = Callable[[Sequence[LostTurn], str], LostEpisode]


def opens(environment: Environment, task: str) -> None:
    """Checks a task by opening it, for environments in which that is cheap."""
    environment.open(task)


def nothing_elsewhere(env: EnvSection) -> None:
    """Checks nothing, for environments that need only their server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """An environment for runs, chosen by `env.name`. Raises ValueError for a length that the API cannot carry."""

    open: Callable[[EnvSection], Environment]
    """Opens the environment that a config asks for. Raises UserError for missing data or packages."""
    prompts: Mapping[str, Callable[[int], PromptTemplate]]
    """Maps `env.prompt` to a function that makes the template from `env.history`."""
    describe: Callable[[EnvSection], str]
    """Describes the games in one line for the plan, from the config and environment variables. It reads no data."""
    max_steps: int = LONGEST
    """The largest `env.max_steps`."""
    holding: Callable[[EnvSection, str], Environment] | None = None
    """Opens the environment of a task id, if it may be another one than `open` returns. Raises as `open` does, and
    KeyError if the id belongs to none."""
    check: Callable[[Environment, str], None] = opens
    """Checks one task cheaply, before anything starts. Raises EnvFault for a broken task."""
    reachable: Callable[[EnvSection], None] = nothing_elsewhere
    """Asks each outside service that a server needs once, before anything starts. Raises UserError if a service gives
    no valid answer in time."""
    threaded: Callable[[EnvSection], bool] = field(default=lambda _: False)
    """Says whether a step is so slow that the server should take it in a separate thread."""
    session_bytes: int = 0
    """Bytes that each live session takes outside the server's process. Servers hold no more sessions than fit."""
    stops: tuple[str, ...] = (ACTION_END,)
    """Texts that end an answer, such as tags. Text after the first one is ignored. A model made here has each as one
    token."""
    tools: Callable[[], Sequence[Tool]] = tuple
    """Returns the tools that it offers to agents (docs/tasks/own-agent.md). Its sessions receive calls of them as JSON
    text. Only an agent's workers and the checks before they start call it, so other uses need no server that lists
    them. Raises EnvFault if that server is unavailable."""
    says_unchanged: bool = True
    """Whether its outcomes may have `unchanged` set. If not, `learner.credit.stay` has no effect."""
    teacher: Teacher | None = None
    """None: no cold start."""
    explain: Explain | None = None
    """Explains a lost episode from its turns and its last observation, for reports. Raises ValueError for texts that
    are not of this environment. None: reports have only the counts of every environment."""
    findings: Callable[[], Iterable[Finding]] = tuple
    """Reports on data and optional packages of this machine, for `gagpo doctor`. It must be light."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_steps <= LONGEST:
            raise ValueError(f"max_steps is {self.max_steps}, and an episode has 1 to {LONGEST} steps")


def check_declared(name: object, max_steps: object) -> None:
    """Raises UserError for a name that is no word, because task ids begin with it, and for a `max_steps` that is no
    whole number. The functions that make a spec of a user's own game or data call it."""
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name)):
        raise UserError(f"name={name!r:.60} names no environment",
                        "use a word of letters, digits, dots, dashes and underscores, such as my-game")
    if type(max_steps) is not int:
        raise UserError(f"the environment {name} has max_steps={max_steps!r:.60}",
                        "give the most steps of an episode as a whole number")
