"""One Ray actor as a member: a rollout worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deploy.members import endings, private_ray
from deploy.members.placement import ProcessPlace
from services.controller.member import End
from services.errors import GagpoError

ANSWER_S = 10.0
"""Longest wait for the result of a call that has ended, in seconds."""
Options = Mapping[str, Any]
"""The options that put a Ray actor into its place."""


class Actor:
    """One Ray actor that works as long as its `run()` lasts. The actor is created once it has its place on the cluster.

    Ray never restarts the actor, because that would hide its death. The supervisor creates a new actor instead.
    """

    def __init__(self, name: str, role: str, beat: str, make: Callable[[Options], Any], place: ProcessPlace) -> None:
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
    """Returns the first failure, else None while a call runs, else End(""). Raises a call's UserError."""
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
    """Ends actors at once. Actors that have already ended are no error."""
    import ray

    for handle in handles:
        private_ray.tell(partial(ray.kill, handle, no_restart=True), "to end an actor")
