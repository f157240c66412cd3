"""Shows the time in which rollout workers load the model as a stage of its own, before the next stage begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

Beats = Callable[[], Mapping[str, Any]]
P = ParamSpec("P")


class Loading:
    """Delays the next stage in the view until every rollout worker has sent a heartbeat.

    Loading vLLM takes from twenty seconds to minutes. Without this class the view would say that games are played.
    """

    def __init__(self, workers: Callable[[], int], beats: Beats, *, waiting: Callable[[str], object]) -> None:
        """`workers` returns the wanted number of rollout workers. `beats`: Store.beats. `waiting` takes a line about
        the loading, several times a second.
        """
        self._workers, self._beats, self._waiting = workers, beats, waiting
        self._next: Callable[[], object] | None = None
        self._ready = False

    def then(self, begin: Callable[[], object]) -> None:
        """Calls `begin` once all rollout workers are ready; immediately if they already are."""
        if self._ready:
            begin()
        else:
            self._next = begin

    def after(self, show: Callable[P, object]) -> Callable[P, None]:
        """Returns `show` as a function that does nothing before all rollout workers are ready."""
        def shown(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._ready:
                show(*args, **kwargs)

        return shown

    def tick(self) -> None:
        """Checks the heartbeats until all rollout workers are ready."""
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
