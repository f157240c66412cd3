"""Members that are Ray actors: rollout workers, and the learner's ranks, which start and end together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deploy.members import exit_reasons, private_ray
from deploy.members.placement import (
    ClusterPlace,
    GpuShare,
    ProcessPlace,
    Resources,
    SharedGpus,
    fitting,
    free_resources,
)
from services.controller.member import End
from services.errors import GagpoError
from services.telemetry.logs import get_logger

log = get_logger("learner rank group")
SHRINK_AFTER_S = 10.0
"""Seconds before fewer ranks are tried. A cluster reports a lost node, or freed resources, some seconds late."""
ANSWER_S = 10.0
"""Longest wait for the result of a call that has ended, in seconds."""
Options = Mapping[str, Any]
"""The options of a Ray actor that select its node and its resources."""


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


class LearnerRanks:
    """The learner's ranks. `make(rank, world, options)` creates the actor of one rank, and `shared_gpus` are GPUs that
    the ranks share with rollout workers.

    Once rank 0's process is up, it names the address where all ranks meet; then all ranks run. If the cluster has no
    room for all ranks, as many start as fit, but at least `fewest`; if fewer than that fit, they wait. At the next
    start all ranks are asked for again. Gradients do not depend on the number of ranks.
    """

    role: str = "learner"
    beat: str | None = "learner-0"
    name = "learner"

    def __init__(self, world: int, make: Callable[[int, int, Options], Any], bundle: Resources, *,
                 fewest: int | None = None, shared_gpus: SharedGpus | None = None) -> None:
        self._world = world
        self._fewest = fewest or world
        self._make = make
        self._bundle = bundle
        self._shared_gpus = shared_gpus
        self._place = self._place_of(world)
        self._asked_at = 0.0
        self._handles: list[Any] = []
        self._rendezvous: Any = None
        self._lives: list[Any] = []

    def start(self) -> None:
        self._ask(self._world)

    def ready(self) -> bool:
        return False

    def lacks(self) -> str:
        return self._place.lacks()

    def poll(self) -> End | None:
        if self._lives:
            return end_of(self._lives, self.role)
        if not self._handles:
            if not self._place.granted():
                self._shrink()
                return None
            world = len(self._place.asked)
            self._handles = [self._make(rank, world, self._place.options(rank)) for rank in range(world)]
            self._rendezvous = self._handles[0].rendezvous.remote()
        end = end_of([self._rendezvous], self.role)
        if end is None or end.reason:
            return end
        self._lives = [handle.run.remote(self._rendezvous) for handle in self._handles]
        return None

    def drain(self) -> None:
        """Raises NotImplementedError: the only learner of a run is never drained."""
        raise NotImplementedError

    def leave(self, seconds: float) -> None:
        """Asks for a checkpoint of the current learner step, and waits up to `seconds` until all ranks have ended."""
        import ray

        if self._lives:
            self._handles[0].leave.remote()
            lives, until = self._lives, time.monotonic() + seconds
            while lives and time.monotonic() < until:  # signals are handled between two calls
                _, lives = ray.wait(lives, num_returns=len(lives), timeout=min(1.0, seconds))

    def stop(self) -> None:
        kill(self._handles)
        self._handles, self._lives = [], []
        self._place.release()

    def _ask(self, ranks: int) -> None:
        self._place = self._place_of(ranks)
        self._place.ask()
        self._asked_at = time.monotonic()

    def _place_of(self, ranks: int) -> ProcessPlace:
        asked = [self._bundle] * ranks
        return ClusterPlace(asked) if self._shared_gpus is None else GpuShare(self._shared_gpus, asked)

    def _shrink(self) -> None:
        """Asks for fewer ranks if the config allows that number and it fits now."""
        if time.monotonic() - self._asked_at < SHRINK_AFTER_S:
            return
        room = fitting([self._bundle] * self._world, [free_resources()])
        if self._fewest <= room < len(self._place.asked):
            log.warning("the learner continues with fewer ranks", ranks=room, wanted=self._world)
            self._place.release()
            self._ask(room)


def end_of(calls: list[Any], role: str) -> End | None:
    """Returns the first failure, else None while a call runs, else End(""). Raises a call's UserError."""
    import ray
    from ray.exceptions import RayError

    done, running = ray.wait(calls, num_returns=len(calls), timeout=0)
    for call in done:
        try:
            ray.get(call, timeout=ANSWER_S)
        except (RayError, GagpoError) as error:
            return exit_reasons.describe_actor_exit(error, role)
    return None if running else End("")


def kill(handles: list[Any]) -> None:
    """Ends actors at once. Actors that have already ended are no error."""
    import ray

    for handle in handles:
        private_ray.attempt(partial(ray.kill, handle, no_restart=True), "to end an actor")
