"""The errors of the system. Each failure is attributed once, to the boundary where it happened.

    GagpoError
    ├── UserError            a mistake of the user, in one line: what is wrong; how to fix it
    │   └── Unanswered       a server that the config names does not answer
    └── Fault                our code or the machine failed
        ├── EnvFault         an environment server or its engine
        │   ├── UnknownTask      the environment has no task of this id
        │   ├── ReplayDiverged   a rebuilt session differs from the recorded one
        │   └── Unavailable      a service behind the environment does not answer; nothing has happened in the game
        ├── AgentFault       an agent of the user's own
        ├── EngineFault      vLLM: sampling or a weight update
        │   └── WrongWeights     an engine plays other weights than it was sent
        ├── StoreFault       Redis
        │   └── LeaseLost    another process has this role now, so stop at once
        ├── LearnerFault     training, checkpoint, collectives
        └── DeadlineExceeded a wait took longer than its deadline

A Fault is never turned into a reward. The command line prints a UserError as `error: ...` and exits with 2. After a
Fault or a bug it exits with 1, with the traceback in the run's log, or on stderr if no log can be written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import cast


class GagpoError(Exception):
    """Root of all errors that this system raises on purpose."""


class UserError(GagpoError):
    """A mistake that the user can fix.

    `what` says what is wrong, `fix` says how to fix it; together they are one line. `others`: further mistakes that
    were found in the same place. Each is a line of its own in the text.
    """

    others: tuple[UserError, ...] = ()

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return "\n".join([f"{self.what}; {self.fix}", *map(str, self.others)])

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str], dict[str, object]]:
        """Pickle would call the class with the joined text alone, and an actor's UserError would not arrive."""
        return type(self), (self.what, self.fix), vars(self)


class Unanswered(UserError):
    """A server that the config names does not answer: its address is wrong, or it is unavailable for a while."""


Check = Callable[[], Iterable[UserError] | None]
"""A check that raises a UserError, or yields one for each mistake."""


def check_together(*checks: Check) -> None:
    """Makes all checks, and raises their mistakes as one UserError."""
    mistakes: list[UserError] = []
    for check in checks:
        try:
            for mistake in check() or ():
                mistakes.append(mistake)
        except UserError as error:
            mistakes.append(error)
    raise_together(mistakes)


def raise_together(mistakes: Sequence[UserError]) -> None:
    """Raises the first mistake, with all that differ from it as its `others`. Does nothing if there is none."""
    lines: dict[str, UserError] = {}
    for error in mistakes:
        for each in (error, *error.others):
            lines.setdefault(f"{each.what}; {each.fix}", each)
    if lines:
        first, *others = lines.values()
        for each in others:
            each.others = ()
        first.others = tuple(others)
        raise first from None


class Fault(GagpoError):
    """A failure that the user did not cause. `boundary` names where it happened."""

    boundary = "run"


class EnvFault(Fault):
    """An environment server or its engine failed."""

    boundary = "env"


class UnknownTask(EnvFault):
    """The environment has no task of this id."""


class ReplayDiverged(EnvFault):
    """A session rebuilt from its actions does not reproduce the recorded digest."""


class Unavailable(EnvFault):
    """A service that the environment asks, such as a retriever, is unavailable. Nothing has happened in the game, so
    the same call may be made again."""


class AgentFault(Fault):
    """An agent of the user's own failed, or did not end."""

    boundary = "agent"


class EngineFault(Fault):
    """Sampling or a weight update failed."""

    boundary = "engine"


class WrongWeights(EngineFault):
    """After an update an engine plays other weights than it was sent. Another update may still be right."""


class StoreFault(Fault):
    """Redis failed, or gave an answer that our protocol does not allow."""

    boundary = "store"


class LeaseLost(StoreFault):
    """The role's lease passed to another process; the holder must stop without another write."""


class LearnerFault(Fault):
    """Training failed: a collective, a checkpoint, a non-finite loss."""

    boundary = "learner"


class DeadlineExceeded(Fault):
    """A wait took longer than its deadline."""

    boundary = "deadline"


def utf8(text: str) -> str:
    """Returns `text` with a question mark for each half of a surrogate pair, which UTF-8 lacks: errors may hold one."""
    return text.encode(errors="replace").decode()


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's text, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def in_short(error: BaseException) -> str:
    """Returns the type of an exception and the first line of its text, if it has one."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def first_of(error: BaseException) -> BaseException:
    """Returns the first exception of a group, as task groups raise them, and any other exception as it is. The text of
    a group only counts its exceptions, which mostly have one cause."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return first_of(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])


def described(error: BaseException) -> str:
    """Returns an unexpected exception as one line: its type, its text, and the last line in its traceback that is not
    of an installed package. For a group it describes the first exception."""
    error = first_of(error)
    text = " ".join(str(error).split()) or "no text"
    frames = traceback.extract_tb(error.__traceback__)
    at = next((frame for frame in reversed(frames) if "/site-packages/" not in frame.filename), None)
    place = f" (in {at.name}, {at.filename.rpartition('/')[2]}:{at.lineno})" if at else ""
    return f"{type(error).__name__}: {text}{place}"
