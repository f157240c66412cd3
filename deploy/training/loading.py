"""Shows the time in which rollout workers load the model as a stage of its own, before the next stage begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from services.controller.member import State

Beats = Callable[[], Mapping[str, Any]]
States = Callable[[], Mapping[tuple[str, State], int]]
P = ParamSpec("P")
LOADS: tuple[State, ...] = ("starting", "running")
"""States of workers that load the model or have loaded it."""


class Loading:
    """Delays the next stage in the view until all rollout workers that load, at least one, have sent a heartbeat.

    Loading vLLM takes from twenty seconds to minutes. Without this class the view would say that games are played. It
    does not wait for workers that are sick or lack a place on the cluster: the run continues without them.
    """

    def __init__(self, states: States, beats: Beats, *, waiting: Callable[[str], object]) -> None:
        """`states`: Supervisor.states. `beats`: RunState.beats. `waiting` takes a line about the loading, several times
        a second.
        """
        self._states, self._beats, self._waiting = states, beats, waiting
        self._next: Callable[[], object] | None = None
        self._ready = False

    def then(self, begin: Callable[[], object]) -> None:
        """Calls `begin` once these rollout workers are ready; immediately if they already are."""
        if self._ready:
            begin()
        else:
            self._next = begin

    def after(self, show: Callable[P, object]) -> Callable[P, None]:
        """Returns `show` as a function that does nothing before these rollout workers are ready."""
        def shown(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._ready:
                show(*args, **kwargs)

        return shown

    def tick(self) -> None:
        """Checks the heartbeats until these rollout workers are ready."""
        if self._ready:
            return
        loaded = sum(name.startswith("rollout-") for name in self._beats())
        states = self._states()
        expected = sum(states.get(("rollout", state), 0) for state in LOADS)
        if loaded < max(1, expected):
            ready = f", {loaded} of {expected} samplers are ready" if expected > 1 else ""
            self._waiting(f"vLLM loads the model and warms up{ready}")
            return
        self._ready = True
        if self._next is not None:
            self._next()
