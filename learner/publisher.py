"""Keeps the current version on the weights actor, also after that actor has died."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError

from services.records import Version
from services.weights.pack import Packed

PUBLISH_S = 300.0
ASK_S = 30.0
LOOK_EVERY_S = 5.0
AGAIN_S = 0.5
"""Between two tries to publish while Ray creates the actor again."""


class Publisher:
    """Publishes to the weights actor. `weights`: its handle. If the actor dies, Ray creates it again, empty."""

    def __init__(self, weights: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._weights = weights
        self._clock = clock
        self._current: tuple[Version, Packed] | None = None
        self._looked = 0.0

    def publish(self, version: Version, packed: Packed) -> None:
        """Hands the weights over. If the actor dies meanwhile, the one that Ray creates in its place gets them.

        Raises Ray's errors if that takes longer than PUBLISH_S; then all ranks end and are started again.
        """
        deadline = time.monotonic() + PUBLISH_S
        while True:
            try:
                ray.get(self._weights.publish.remote(version, packed.manifest, packed.buffer),
                        timeout=max(0.0, deadline - time.monotonic()))
                break
            except RayActorError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(AGAIN_S)
        self._current = version, packed

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the weights actor and returns its answer. Raises Ray's errors."""
        return ray.get(getattr(self._weights, method).remote(*arguments), timeout=PUBLISH_S)

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
        except RayActorError:
            return  # the actor is being created again: the next check finds it
