"""The time in which the samplers load the model: the view says so, and the next stage begins when they are ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Beats = Callable[[], Mapping[str, Any]]


class Loading:
    """Holds back the name of the next stage until every sampler has sent a first heartbeat.

    Loading vLLM takes from twenty seconds to minutes. Without this the view would call it playing, in silence.
    """

    def __init__(self, workers: Callable[[], int], beats: Beats, *, waiting: Callable[[str], object]) -> None:
        """`workers`: how many samplers are wanted now. `beats`: Store.beats. `waiting` takes a line about what goes on,
        several times a second.
        """
        self._workers, self._beats, self._waiting = workers, beats, waiting
        self._next: Callable[[], object] | None = None
        self._ready = False

    def then(self, begin: Callable[[], object]) -> None:
        """Calls `begin` once the samplers are ready, at once if they are."""
        if self._ready:
            begin()
        else:
            self._next = begin

    def tick(self) -> None:
        """Looks at the heartbeats until all samplers are there."""
        if self._ready:
            return
        loaded = sum(name.startswith("rollout-") for name in self._beats())
        if loaded < (wanted := self._workers()):
            ready = f", {loaded} of {wanted} samplers are ready" if wanted > 1 else ""
            self._waiting(f"vLLM loads the model and warms up{ready}")
            return
        self._ready = True
        if self._next is not None:
            self._next()
