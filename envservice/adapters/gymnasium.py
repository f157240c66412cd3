"""Any game of text with Gymnasium's `reset(seed=...)` and `step(action)` as an environment. Imports no Gymnasium.

A task is a seed: `<name>/<split>/<seed>`. A session must be a pure function of seed and actions, and a wrapper cannot
check that: a game that draws from the global `random`, the clock or the network is not pure. `plays_twice` finds most
such games before a run starts. The digests of the API find the others, as `replay_diverged`, when a session is rebuilt.
The code of a game has no digest of its own; `version` stands for it.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Any, Protocol, SupportsFloat, cast

from envservice.base import Environment, Outcome, PromptTemplate, Replay, Session, digest_of, outcome_of
from envservice.spec import LONGEST, EnvironmentSpec, check_declared, opens
from envservice.text.plain_prompts import PLAIN
from services.errors import EnvFault, UserError
from services.process.signals import signal_of
from services.telemetry.logs import get_logger

log = get_logger("games")
_PROBED_STEPS = 8
_UNLISTED = "say something that means nothing"
_SEED = re.compile("[0-9]{8}")
MOST_TASKS = 10**8
"""Number of seeds of eight digits."""
_RESET: Mapping[str, Any] = {"text": str, "info": Mapping}
_STEP: Mapping[str, Any] = {"text": str, "reward": SupportsFloat, "terminated": object, "truncated": object,
                            "info": Mapping}
"""The parts of the results of reset and step, with their types."""
_VERDICTS = (True, False)
"""The values that say yes or no. Booleans of numpy are equal to them; a text such as "False" would count as true."""


class TextGame(Protocol):
    """The part of gymnasium.Env that is used, with text for observations and actions.

    Four keys of `info` are read: `admissible_actions`, a list of texts; `won`, by default whether the game terminated
    with a positive reward; `state_id`, the game's own name of its state, a text or a whole number; `unchanged`, whether
    the action changed nothing. A reset's info may have the first and the third. A method `close`, if it has one, is
    called once when its session has been dropped.
    """

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]: ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...


class TextSession:
    """One play of a game. Truncation ends it, and the outcome says so: credit may use the value of the last state
    then."""

    def __init__(self, game: TextGame, seed: int) -> None:
        self._game = game
        self._seed = seed
        if callable(close := getattr(game, "close", None)):
            weakref.finalize(self, _close, close).atexit = False  # a process that ends waits for no game

    def reset(self) -> Outcome:
        text, info = _parts(self._game.reset(seed=self._seed), _RESET)
        return Outcome(observation=str(text), admissible_actions=_admissible(info), state=_state(info))

    def step(self, action: str) -> Outcome:
        text, reward, terminated, truncated, info = _parts(self._game.step(action), _STEP)
        ended, cut = _verdict("terminated", terminated), _verdict("truncated", truncated)
        return outcome_of(Outcome(
            observation=str(text), admissible_actions=_admissible(info), reward=float(reward), done=ended or cut,
            won=_verdict("won", info.get("won", ended and float(reward) > 0)), state=_state(info),
            unchanged=_verdict("unchanged", info.get("unchanged", False)), truncated=cut and not ended), "step")


class TextEnvironment:
    """An environment whose tasks are seeds: `sizes` are those of the training, validation and held-out splits."""

    engine = "gymnasium"

    def __init__(
        self, make: Callable[[], TextGame], *, name: str, version: str, sizes: tuple[int, int, int],
        replayable: bool = True,
    ) -> None:
        self.name = name
        self.version = version
        self.replay: Replay = "pure" if replayable else "live"
        self._make = make
        train, valid, heldout = sizes
        self._seeds = {"train": range(train), "valid": range(train, train + valid),
                       "heldout": range(train + valid, train + valid + heldout)}

    def splits(self) -> list[str]:
        return list(self._seeds)

    def training_splits(self) -> tuple[str, str, str]:
        return "train", "valid", "heldout"

    def tasks(self, split: str) -> list[str]:
        if split not in self._seeds:
            raise UserError(f"{self.name} has no split {split!r}", f"choose one of {', '.join(self._seeds)}")
        return [f"{self.name}/{split}/{seed:08d}" for seed in self._seeds[split]]

    def task_type(self, task: str) -> str:
        self._seed(task)
        return self.name

    def digest(self, split: str) -> str:
        return digest_of([self.version, *self.tasks(split)])

    def task_digest(self, task: str) -> str:
        return digest_of([self.version, f"{self.name}/{self._seed(task)}"])

    def open(self, task: str) -> Session:
        return TextSession(self._make(), self._seed(task))

    def _seed(self, task: str) -> int:
        split, _, seed = task.removeprefix(f"{self.name}/").partition("/")
        number = int(seed) if _SEED.fullmatch(seed) else -1
        if not task.startswith(f"{self.name}/") or number not in self._seeds.get(split, ()):
            raise KeyError(task)
        return number


def text_spec(
    make: Callable[[], TextGame], *, name: str, version: str = "1", max_steps: int = LONGEST,
    sizes: tuple[int, int, int] = (1000, 100, 300),
    prompts: Mapping[str, Callable[[int], PromptTemplate]] = PLAIN, replayable: bool = True, threaded: bool = False,
) -> EnvironmentSpec:
    """Makes the EnvironmentSpec of a game, for `env.name` to point to.

    `make` returns a fresh game for every session. `sizes` are those of train, valid and heldout. `replayable`: whether
    the same actions lead to the same outcomes again. If not, a lost session ends its episode, which is played again.
    `threaded`: whether a server plays all games in one separate thread, not in its event loop, for games whose steps
    are slow or run an event loop of their own. Raises UserError for a name that is no word, for `max_steps` and `sizes`
    of another form, and for a game in place of `make`.
    """
    check_declared(name, max_steps)
    _check_sizes(name, sizes)
    if not callable(make):
        raise UserError(f"the game {name} is {make!r:.60}, which makes no games", "give its class, or a function")
    return EnvironmentSpec(
        open=lambda _: TextEnvironment(make, name=name, version=version, sizes=sizes, replayable=replayable),
        prompts=prompts, describe=lambda _: f"version {version}, seeds as tasks", max_steps=max_steps,
        check=plays_twice if replayable else opens, threaded=lambda _: threaded)


def _check_sizes(name: str, sizes: object) -> None:
    given = cast("tuple[object, ...]", sizes) if isinstance(sizes, tuple | list) else ()
    whole = [size for size in given if type(size) is int and size > 0]
    if not len(whole) == len(given) == 3 or sum(whole) > MOST_TASKS:
        raise UserError(f"the game {name} has sizes={sizes!r:.60}",
                        f"give the tasks of train, valid and heldout, at least one of each and "
                        f"at most {MOST_TASKS:,} in all, as (1000, 100, 300)")


def plays_twice(environment: Environment, task: str) -> None:
    """Plays two sessions of the same task in step, and a third one with an action that means nothing. Raises EnvFault
    if the two differ, and whatever the game raises."""
    _takes_any_text(environment, task)
    one, other = environment.open(task), environment.open(task)
    now, same = (outcome_of(play.reset(), "reset") for play in (one, other))
    for step in range(_PROBED_STEPS + 1):
        if now != same:
            raise EnvFault(f"after {step} equal actions two plays differ: not a pure function of seed and actions")
        if now.done or step == _PROBED_STEPS:
            return
        choices = now.admissible_actions or [str(step)]
        action = choices[7 * step % len(choices)]
        now, same = (outcome_of(play.step(action), "step") for play in (one, other))


def _takes_any_text(environment: Environment, task: str) -> None:
    """Plays an action that no game lists. A model writes such actions, and a fault would end its group."""
    play = environment.open(task)
    if not outcome_of(play.reset(), "reset").done:
        outcome_of(play.step(_UNLISTED), "step")


def _parts(returned: Any, wanted: Mapping[str, Any]) -> Any:
    """Returns `returned`. Raises EnvFault unless it has the parts `wanted`, which maps their names to their types.

    The game is the user's own, so only this check says that an observation has to be text.
    """
    verb, form = ("reset", "step")[wanted is _STEP], f"({', '.join(wanted)})"
    if not isinstance(returned, tuple | list) or len(cast("tuple[Any, ...]", returned)) != len(wanted):
        raise EnvFault(f"its {verb} returned {_shown(returned)}, and not {form}")
    for (name, kind), part in zip(wanted.items(), returned, strict=True):
        if not isinstance(part, kind):
            raise EnvFault(f"its {verb} returned {_shown(part)} as {name}, in {form}")
    return returned


def _close(close: Callable[[], object]) -> None:
    """Closes a game whose session has been dropped. Nobody could catch an exception here, so it is logged."""
    try:
        close()
    except (Exception, SystemExit) as error:
        if signal_of(error) is not None:
            raise
        log.exception("a game failed to close")


def _verdict(name: str, value: Any) -> bool:
    if value not in _VERDICTS:
        raise EnvFault(f"its step returned {_shown(value)} as {name}, and not True or False")
    return bool(value)


def _state(info: Mapping[str, Any]) -> str:
    """Returns the game's name of its state. Raises EnvFault unless it is a text or a whole number: str() of a long
    array leaves out its middle, and str(None) is the same for all states."""
    state = info.get("state_id", "")
    try:
        return state if isinstance(state, str) else str(index(state))
    except TypeError:
        raise EnvFault(f"its state_id is {_shown(state)}, and not a text or a whole number") from None


def _shown(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"


def _admissible(info: Mapping[str, Any]) -> list[str]:
    listed = info.get("admissible_actions", ())
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise EnvFault(f"its admissible_actions are {_shown(listed)}, and not a list of texts")
    return [str(action) for action in cast("Iterable[object]", listed)]
