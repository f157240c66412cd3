"""The retirement of episodes from Redis: after it, the steps that trained on them can no longer be replayed."""

from __future__ import annotations

from collections.abc import Callable

from services.store.lease import Lease
from services.store.store import Store
from services.telemetry.logs import get_logger

log = get_logger("learner")


class Retirement:
    """Retires the episodes of steps up to the newest durable checkpoint; with an object store, up to the newest one
    that is there too.

    `mirrored` returns the step of that one; None: there is no object store.
    """

    def __init__(self, store: Store, lease: Lease, mirrored: Callable[[], int] | None) -> None:
        self._store, self._lease, self._mirrored = store, lease, mirrored
        self._retired = 0
        self.durable = 0
        """Learner step of the newest checkpoint."""

    def restored(self, step: int) -> None:
        """Notes that the learner goes on after `step`. Its process may have died before it retired that one."""
        self.durable, self._retired = step, self._store.counts().retired_step

    @property
    def pending(self) -> bool:
        """Whether episodes of a durable step are still held."""
        return self._retired < self.durable

    @property
    def due(self) -> bool:
        """Whether some of them may be retired now."""
        return self._retired < self._replaceable()

    def retire(self) -> None:
        """Retires those that nothing can need again."""
        step = self._replaceable()
        if self._retired < step:
            log.info("episodes retired", step=step, bytes=self._store.steps.retire(self._lease, step),
                     bodies=self._store.sweep())
            self._retired = step

    def _replaceable(self) -> int:
        if self._mirrored is None or not self.pending:
            return self.durable
        return min(self.durable, self._mirrored())
