"""One Ray actor as a member: a rollout worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deploy.members import endings
from deploy.members.placement import ClusterPlace
from services.controller.member import End
from services.errors import GagpoError

ANSWER_S = 10.0
"""Longest time for the result of a call that has ended."""
Options = Mapping[str, Any]
"""The options of a Ray actor that put it into its place."""


class Actor:
    """One Ray actor whose `run()` is its whole life. It is made once it has its place on the cluster.

    A death is final for the actor: the supervisor has a new one made, never Ray, whose restarts would hide the death.
    """

    def __init__(self, name: str, role: str, beat: str, make: Callable[[Options], Any], place: ClusterPlace) -> None:
        self.name = name
        self.role = role
        self.beat: str | None = beat
        self._make = make
        self._place = place
        self._handle: Any = None
        self._life: Any = None

    def start(self) -> None:
        self._place.ask()

    def ready(self) -> bool:
        return False

    def lacks(self) -> str:
        return self._place.lacks()

    def poll(self) -> End | None:
        if self._life is None:
            if not self._place.granted():
                return None
            self._handle = self._make(self._place.options(0))
            self._life = self._handle.run.remote()
        return end_of([self._life], self.role)

    def drain(self) -> None:
        self._handle.drain.remote()

    def stop(self) -> None:
        kill([] if self._handle is None else [self._handle])
        self._handle = self._life = None
        self._place.release()


def end_of(calls: list[Any], role: str) -> End | None:
    """Returns None while all calls run, End("") once all returned, else the first failure. Raises UserError."""
    import ray
    from ray.exceptions import RayError

    done, running = ray.wait(calls, num_returns=len(calls), timeout=0)
    for call in done:
        try:
            ray.get(call, timeout=ANSWER_S)
        except (RayError, GagpoError) as error:
            return endings.of_actor(error, role)
    return None if running else End("")


def kill(handles: list[Any]) -> None:
    """Ends actors at once; one that is gone already is left alone."""
    import ray

    for handle in handles:
        ray.kill(handle, no_restart=True)
