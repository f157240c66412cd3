"""The run's own environment server as a member: an actor on a node of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from deploy.members.env_server import HANDOVER_S
from deploy.members.placement import ClusterPlace
from deploy.members.ray_actor import Options, end_of, kill
from services.controller.member import End


class PlacedServer:
    """One environment server on any node with room. Its URL is known once it runs, and changes if it is restarted."""

    role: str = "environment"
    beat: str | None = None

    def __init__(self, index: int, make: Callable[[Options], Any], place: ClusterPlace) -> None:
        self.name = f"environment server {index}"
        self.url: str = ""
        """URL of the server; empty until the server answers."""
        self._make = make
        self._place = place
        self._handle: Any = None
        self._calls: list[Any] = []
        self._ends_at: float | None = None

    def start(self) -> None:
        self.url = ""
        self._place.ask()

    def ready(self) -> bool:
        return bool(self.url)

    def lacks(self) -> str:
        return self._place.lacks()

    def poll(self) -> End | None:
        import ray

        if self._ends_at is not None and time.monotonic() > self._ends_at:
            return End("")
        if not self._calls:
            if self._place.granted():
                self._handle = self._make(self._place.options(0))
                self._calls = [self._handle.open.remote(), self._handle.run.remote()]
            return None
        if not self.url and ray.wait(self._calls[:1], timeout=0)[0]:
            end = end_of(self._calls[:1], self.role)
            if end is not None and end.reason:
                return end
            self.url = str(ray.get(self._calls[0]))
        return end_of(self._calls[1:], self.role)

    def drain(self) -> None:
        """Ends the server once every worker has a list of servers without it."""
        self._ends_at = time.monotonic() + HANDOVER_S

    def stop(self) -> None:
        kill([] if self._handle is None else [self._handle])
        self._handle, self._calls, self.url = None, [], ""
        self._place.release()
