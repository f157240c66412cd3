"""Decides which tickets a worker may start with its version, and which version it should load next. Pure functions.

- Training follows the pointer. An update never waits for training episodes: they continue under the new weights.
- No training episode is sampled by older weights than its ticket allows. A restarted learner publishes again from its
  checkpoint on: the worker keeps its weights until the pointer has come as far as these episodes need, or they end.
- An evaluation episode is played at exactly one version, so no update happens while one is being played.
- The pointer may name weights that nobody has, until a restarted learner has published them again: see Missing.
- A worker may have to load an older version for evaluation tickets. First it lets its training episodes end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from services.records import PlayedTurn, Ticket, Version

RETRY_S = 5.0
"""Pause between two attempts to get the current weights. Each may read an entire export."""


def may_start(ticket: Ticket, own: Version, pointer: Version) -> bool:
    """Whether the ticket may start at version `own`. `pointer` must have been read after the ticket was claimed.

    No training episode starts at a version of an earlier incarnation. One that plays already continues (`usable`).
    """
    if ticket.exact_version is not None:
        return ticket.exact_version == own
    return own.incarnation == pointer.incarnation and own.step >= ticket.min_step


def next_version(own: Version, pointer: Version, playing: Collection[Ticket], held: Collection[Ticket]) -> Version:
    """Returns the version to load now, or `own` for none. `held` tickets are claimed and not started."""
    if any(ticket.exact_version == own for ticket in (*playing, *held)):
        return own
    training = [ticket for ticket in playing if ticket.exact_version is None]
    if own != pointer:
        return own if any(ticket.min_step > pointer.step for ticket in training) else pointer
    visits = wanted_elsewhere(own, held)
    return own if not visits or training else min(visits)


def wanted_elsewhere(own: Version, held: Collection[Ticket]) -> set[Version]:
    """Returns versions other than `own` at which held evaluation tickets must be played."""
    return {t.exact_version for t in held if t.exact_version is not None and t.exact_version != own}


def usable(turns: Sequence[PlayedTurn], ticket: Ticket, own: Version) -> list[PlayedTurn]:
    """Returns the first turns of an earlier attempt whose tokens were all sampled by versions that the ticket allows.

    Training: from the ticket's lowest step up to the step of `own`. A version of an earlier incarnation counts by its
    step, because a replay reproduces the weights of each step. Evaluation: the ticket's one version.
    """
    def allowed(version: Version) -> bool:
        exact = ticket.exact_version
        return ticket.min_step <= version.step <= own.step if exact is None else version == exact

    return list(takewhile(lambda turn: all(allowed(span.version) for span in turn.spans), turns))


@dataclass(slots=True)
class Missing:
    """Remembers the current version while nobody has its weights."""

    version: Version | None = None
    looked: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def note(self, version: Version) -> None:
        """Notes that nobody has `version`. The worker waits, and the learner publishes it again once it is back."""
        self.version, self.looked = version, self.clock()

    def pauses(self, version: Version) -> bool:
        """Returns whether it is too early to look for `version` again."""
        return version == self.version and self.clock() - self.looked < RETRY_S
