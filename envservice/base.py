"""The protocols of an environment, which each environment's folder implements.

A pure session is a function of (task, actions), so any server can rebuild it. If its outcomes come from elsewhere, it
is a function of (task, actions, outcomes): see server/sessions.py. A live session acts on the world, and nobody can
rebuild it: if it is lost, its episode ends by a fault and is played again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Literal, Protocol, SupportsFloat, cast, runtime_checkable

from services.errors import EnvFault
from services.rewards import LARGEST_REWARD, within_reward_limit

if TYPE_CHECKING:
    from services.records import EpisodeEnd

Replay = Literal["pure", "transcript", "live"]
RULE = "score/"
"""The prefix of keys in the last `info` that hold the score by one of several rules, such as `score/strict`.
Evaluations report them next to `task_score`, which is the score by the rule in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a reset or a step."""

    observation: str
    """The engine's raw feedback."""
    admissible_actions: list[str]
    """The engine's list, in its order. ALFWorld's includes `help`."""
    reward: float = 0.0
    """The engine's own reward. The trainer scales it."""
    done: bool = False
    won: bool = False
    info: dict[str, str | int | float | bool] = field(default_factory=dict[str, str | int | float | bool])
    state: str = ""
    """The environment's own id of the state, any text, for the state key `environment`. Equal ids in one task mean
    equal states. Empty: the environment gives none. It is never shown to the policy."""
    unchanged: bool = False
    """Whether the environment says that the action changed nothing, as an inadmissible one does in ALFWorld."""
    truncated: bool = False
    """Whether `done` is a limit of the environment's own, such as its time, and not an end of the task."""

    def ended(self, cut: EpisodeEnd) -> EpisodeEnd:
        """Returns how an episode with this last outcome ended. `cut`: the ending if the environment was not done."""
        if not self.done:
            return cut
        if self.won:
            return "won"
        return "turns" if self.truncated else "lost"

    def admits(self, action: str) -> bool:
        """Says whether the action is admissible here."""
        return admits(self.admissible_actions, action)


def admits(listed: Sequence[str], action: str) -> bool:
    """Says whether an action is listed. A placeholder in a listed action, as in `search[<query>]`, matches any text
    that is not empty.

    If the environment lists no actions (search QA), every action is admissible.
    """
    return not listed or action in listed or any(
        len(action) > len(start) + len(end) and action.startswith(start) and action.endswith(end)
        for start, end in map(_around_placeholder, listed) if start or end)


_KINDS = {"observation": str, "state": str, **dict.fromkeys(("done", "won", "unchanged", "truncated"), bool)}
"""Fields of an Outcome with their exact types. Texts and booleans of numpy are refused: JSON lacks their types."""


def outcome_of(returned: object, verb: str) -> Outcome:
    """Returns `returned`, the result of a session's method `verb`. Raises EnvFault unless it is an Outcome whose fields
    have their types and whose reward is within LARGEST_REWARD: the session may be a user's."""
    if not isinstance(returned, Outcome):
        raise EnvFault(f"its {verb} returned {type(returned).__name__} {returned!r:.60}, and not an Outcome")
    for name, kind in _KINDS.items():
        if type(value := getattr(returned, name)) is not kind:
            raise EnvFault(f"its {verb} returned {value!r:.60} as {name}, and not a Python {kind.__name__}")
    if not is_utf8(returned.observation):
        raise EnvFault(f"its {verb} returned an observation with half of a surrogate pair, which UTF-8 lacks")
    listed, info = cast("object", returned.admissible_actions), cast("object", returned.info)
    if not isinstance(listed, list | tuple) or set(map(type, cast("list[object]", listed))) - {str}:
        raise EnvFault(f"its {verb} returned {listed!r:.60} as admissible_actions, and not a list of texts")
    if not isinstance(info, dict) or not all(map(_is_plain, cast("dict[object, object]", info).values())):
        raise EnvFault(f"its {verb} returned {info!r:.60} as info, and not texts, finite numbers and booleans by name")
    reward = cast("object", returned.reward)
    # A check against a protocol takes longer than a step of our engine, so plain numbers go without one.
    if not (isinstance(reward, (float, SupportsFloat)) and within_reward_limit(reward)):
        raise EnvFault(f"its {verb} returned the reward {reward!r:.60}, which is no number of at most "
                       f"{LARGEST_REWARD:g} in size")
    return returned


def is_utf8(text: str) -> bool:
    """Returns whether UTF-8 can encode the text. A file that was decoded wrongly may have half of a surrogate pair."""
    if text.isascii():  # a flag of the text, so this costs nothing
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain(value: object) -> bool:
    return type(value) in (str, bool, int) or (type(value) is float and isfinite(value))


def _around_placeholder(listed: str) -> tuple[str, str]:
    """Returns the text before and after a placeholder, or two empty texts if there is none."""
    start, opened, rest = listed.partition("<")
    _, closed, end = rest.rpartition(">")
    return (start, end) if opened and closed else ("", "")


class Session(Protocol):
    """One game in play. The server drops it without a call, also after a fault. So release its resources by
    `weakref.finalize`, whose function may run in any thread."""

    def reset(self) -> Outcome: ...

    def step(self, action: str) -> Outcome:
        """Takes any string; the environment itself answers a bad one. Undefined after done."""
        ...


class RecordedSession(Session, Protocol):
    """A session of an environment with `replay = "transcript"`. Its reset is still a pure function of the task."""

    def recall(self, action: str, outcome: Outcome) -> None:
        """Repeats an earlier step with its recorded outcome, without asking any service. Undefined after done."""
        ...


@runtime_checkable
class ForeseeingSession(Protocol):
    """A session whose steps wait for another service. A server steps its games one after the other, so without
    `foresee` each would wait for those before it."""

    def foresee(self, action: str) -> None:
        """Asks the service, in another thread, for what `step(action)` needs. Takes no step; the next one may be
        another action, or never come."""
        ...


class Environment(Protocol):
    """An environment with its tasks. It is thread-safe and made once per server process."""

    name: str
    engine: str
    version: str
    replay: Replay
    """`transcript`: `open` returns RecordedSessions, which are rebuilt from their outcomes, not by stepping again.
    `live`: sessions are never rebuilt."""

    def splits(self) -> list[str]: ...

    def training_splits(self) -> tuple[str, str, str]:
        """Returns the splits to train on, to choose the best checkpoint by, and to report on. They share no task."""
        ...

    def task_type(self, task: str) -> str:
        """Returns the kind of the task in one word. Evaluations report success by it. Raises KeyError."""
        ...

    def tasks(self, split: str) -> list[str]:
        """Returns sorted task ids `<env>/<split>/<name>`. Raises UserError for an unknown split or missing data."""
        ...

    def digest(self, split: str) -> str:
        """Returns blake2b over the contents of the split's tasks, sorted by id, or over everything that decides them.

        It is the same on every machine, and different if any task is. It takes seconds at most, since a server computes
        it for all splits on request.
        """
        ...

    def task_digest(self, task: str) -> str:
        """Returns blake2b over one task's content. Raises KeyError for an unknown task, EnvFault for a broken one."""
        ...

    def open(self, task: str) -> Session:
        """Opens a session. Raises KeyError for an unknown task, EnvFault for a broken one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One finished turn, as templates get it."""

    observation: str
    """The observation before the action."""
    action: str
    """The parsed action that the environment received."""
    admissible: bool
    kept: str = ""
    """ParsedAction.kept of its answer."""


def recent(turns: Sequence[Turn], history: int) -> Sequence[Turn]:
    """Returns the last `history` turns, which a prompt shows."""
    return turns[max(0, len(turns) - history) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAction:
    """The action in a response, as the environment will receive it."""

    action: str
    valid: bool
    """Whether the response is well-formed. The template's parser defines that."""
    tag: str = ""
    """The kind of reasoning that the response names, for templates that ask for one. Credit may depend on it."""
    kept: str = ""
    """The part of the response that the template shows in later prompts. Empty for most templates."""


@runtime_checkable
class RewritesAnswers(Protocol):
    """A template whose answers have another form than the scripted players write."""

    def rewrite(self, answer: str, first: Outcome, turns: Sequence[Turn]) -> str:
        """Returns the scripted player's answer to the turn after `turns` in the template's own form."""
        ...


class PromptTemplate(Protocol):
    """A prompt template, with the parser of its answers. Each environment registers its templates by name."""

    name: str
    chat: bool
    """True: the text is one user message for the tokenizer's chat template. False: it is raw text."""

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Returns the prompt of the turn after `turns`. `now` is the latest outcome; at turn 1 it is `first`."""
        ...

    def parse(self, text: str) -> ParsedAction:
        """Reads a response, which is decoded without special tokens."""
        ...


def digest_of(parts: Iterable[str]) -> str:
    """Returns blake2b over the texts, joined by line feeds."""
    total = hashlib.blake2b(digest_size=16)
    for number, part in enumerate(parts):
        total.update((b"\n" if number else b"") + part.encode())
    return total.hexdigest()


def with_data(version: str, digest: str) -> str:
    """Returns the version followed by the beginning of the data's digest, such as `1+data-5f3a9c21`.

    If task ids are row numbers, other data has the same ids. Such an environment names its data in its version, so that
    runs, servers and results with other data have other names.
    """
    return f"{version}+data-{digest[:8]}"
