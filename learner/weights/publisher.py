"""Keeps the current version on the weights actor, also after that actor has died."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from services.errors import DeadlineExceeded
from services.records import Version
from services.weights.pack import Packed

ASK_S = 30.0
LOOK_EVERY_S = 5.0
AGAIN_S = 0.5
"""Between two tries while Ray creates the actor again."""


class Publisher:
    """Publishes to the weights actor. `weights`: its handle. If the actor dies, Ray creates it again, empty.

    `seconds` bounds each call, also those that wait for the new actor (`learner.collective_s`).
    """

    def __init__(self, weights: Any, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._weights = weights
        self._seconds = seconds
        self._clock = clock
        self._current: tuple[Version, Packed] | None = None
        self._looked = 0.0

    def publish(self, version: Version, packed: Packed) -> None:
        """Hands the weights over. If the actor dies meanwhile, the one that Ray creates in its place gets them.

        Raises as `ask` does; then all ranks end and are started again.
        """
        self.ask("publish", version, packed.manifest, packed.buffer)
        self._current = version, packed

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the weights actor and returns its answer. If the actor dies, the next one is asked.

        Raises DeadlineExceeded after `seconds`.
        """
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                return ray.get(getattr(self._weights, method).remote(*arguments),
                               timeout=max(0.0, deadline - time.monotonic()))
            except (RayActorError, GetTimeoutError) as error:
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(f"{method}: the weights actor gave no answer in {self._seconds:g} s "
                                           "(learner.collective_s)") from error
                time.sleep(AGAIN_S)

    def keep(self) -> None:
        """Publishes the current version again if the actor has lost it. Checks at most every five seconds.

        Without this, a worker that starts after the actor's death would find the version nowhere until the next step,
        and the next step waits for that worker.
        """
        if self._current is None or self._clock() - self._looked < LOOK_EVERY_S:
            return
        self._looked = self._clock()
        try:
            if ray.get(self._weights.latest.remote(), timeout=ASK_S) != self._current[0]:
                self.publish(*self._current)
        except (RayActorError, GetTimeoutError):
            return  # it is being created again, or its node is cut off: a later check finds it
