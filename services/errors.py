"""Every failure of the system, attributed once, at the boundary that it crossed.

    GagpoError
    ├── UserError            a mistake of the user's: one line, what is wrong; how to mend it
    └── Fault                something of ours or of the machine broke
        ├── EnvFault         an environment server or its engine
        │   └── ReplayDiverged   a rebuilt session differs from the recorded one
        ├── EngineFault      vLLM: sampling or a weight update
        ├── StoreFault       Redis
        │   └── LeaseLost    another process holds this role now: stop at once
        ├── LearnerFault     training, checkpoint, collectives
        └── DeadlineExceeded an await that ran out of time, whatever it waited for

A Fault is never turned into a reward. The command line prints a UserError as `error: ...` and exits with 2;
anything else exits with 1 and leaves its traceback in the run's log.
"""

from __future__ import annotations

import traceback


class GagpoError(Exception):
    """Root of all errors that this system raises on purpose."""


class UserError(GagpoError):
    """A mistake that the user can mend.

    `what` says what is wrong, `mend` says how to mend it; together they are one line.
    """

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(f"{what}; {mend}")
        self.what = what
        self.mend = mend

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str]]:
        """Pickle would call the class with the joined text alone, and an actor's UserError would not arrive."""
        return type(self), (self.what, self.mend)


class Fault(GagpoError):
    """Something broke that is not the user's doing; `boundary` names where."""

    boundary = "unknown"


class EnvFault(Fault):
    """An environment server or its engine failed."""

    boundary = "env"


class ReplayDiverged(EnvFault):
    """A session rebuilt from its actions does not reproduce the recorded digest."""


class EngineFault(Fault):
    """Sampling or a weight update failed."""

    boundary = "engine"


class StoreFault(Fault):
    """Redis failed or answered what cannot be."""

    boundary = "store"


class LeaseLost(StoreFault):
    """The role's lease passed to another process; the holder must stop without another write."""


class LearnerFault(Fault):
    """Training failed: a collective, a checkpoint, a non-finite loss."""

    boundary = "learner"


class DeadlineExceeded(Fault):
    """An await ran out of time."""

    boundary = "deadline"


def described(error: BaseException) -> str:
    """An exception that nobody foresaw as one line: its type, its text, and the line of code that raised it."""
    text = " ".join(str(error).split()) or "no text"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (in {frames[-1].name}, {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"
