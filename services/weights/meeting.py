"""Where the learner finds the rollout workers that take part in transfers, and they the rounds. Plain state, no waits.

A worker calls again and again, so that a dead one is left out after SILENT_S. All calls return at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from services.records import Version
from services.weights.rounds import Participant, Round

SILENT_S = 10.0
"""Seconds without a call after which a worker no longer takes part."""


class Meeting:
    """The members, the present round and its outcomes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[Participant, float]] = {}
        self._round: Round | None = None
        self._outcomes: dict[str, str] = {}

    def call(self, member: Participant) -> Round | None:
        """Makes the worker a member. Returns the present round if it takes part in it and has not ended it."""
        self._seen[member.worker] = member, self._clock()
        here = self._round
        if here is None or here.first_receiver(member.worker) is None or member.worker in self._outcomes:
            return None
        return here

    def members(self) -> list[Participant]:
        """Returns the workers that called lately, in order of name."""
        now = self._clock()
        return [member for _, (member, seen) in sorted(self._seen.items()) if now - seen < SILENT_S]

    def leave(self, worker: str) -> None:
        """Leaves a worker out of the rounds that follow."""
        self._seen.pop(worker, None)

    def begin(self, found: Round) -> None:
        """Begins a round in the place of the one before."""
        self._round, self._outcomes = found, {}

    def tell(self, worker: str, version: Version, fault: str) -> None:
        """Notes how a round ended for a worker: "" if it holds the version, else why not."""
        if self._round is not None and self._round.version == version:
            self._outcomes[worker] = fault

    def outcomes(self) -> dict[str, str]:
        """Returns how the present round ended, for each worker that has told."""
        return self._outcomes

    def end(self) -> None:
        """Ends the round. Workers that have not begun it leave it out."""
        self._round = None
