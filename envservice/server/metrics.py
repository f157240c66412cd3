"""The server's own metrics, which services/telemetry/catalogue.py declares. Each application has its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from prometheus_client import generate_latest

from envservice.server.sessions import SessionStore
from envservice.wire import STATUS
from services.telemetry.meters import Meters

VERBS = ("reset", "step", "close")
"""Their metrics exist from the start, at 0: a rate needs two scrapes, and a short run may see only one."""


class ServerMetrics:
    """The metrics of one server. A step takes only microseconds, so the labelled histograms are looked up once, and the
    counters of resets, steps and replays are updated at a scrape."""

    def __init__(self, environment: str, store: SessionStore) -> None:
        """`environment` is the environment's name."""
        self._meters = meters = Meters("environment")
        self._store = store
        self._resets = self._steps = self._replays = 0
        self._reset_seconds, self._step_seconds, self._replay_seconds = (
            meters(f"gagpo_env_{what}_seconds", environment=environment) for what in ("reset", "step", "replay"))
        for kind in STATUS:
            meters("gagpo_env_errors_total", type=kind)
        self._request_seconds = {
            (route := f"/v1/episodes:{verb}"): meters("gagpo_env_request_seconds", route=route) for verb in VERBS}
        meters("gagpo_env_sessions_limit").set(store.limit)

    def reset(self, since: float) -> None:
        """Counts a reset. `since` is time.perf_counter() before it."""
        self._resets += 1
        self._reset_seconds.observe(time.perf_counter() - since)

    def stepped(self, since: float, *, rebuilt: bool) -> None:
        """Counts a step. `rebuilt`: its session was rebuilt first, also if this repeats that answer."""
        self._steps += 1
        seconds = time.perf_counter() - since
        if rebuilt:
            self._replays += 1
            self._replay_seconds.observe(seconds)
        else:
            self._step_seconds.observe(seconds)

    def refused(self, kind: str) -> None:
        """Counts a request or an element that ended in a Problem."""
        self._meters("gagpo_env_errors_total", type=kind).inc()

    @contextmanager
    def request(self, route: str) -> Iterator[None]:
        """Measures the time of the request in its block, unless the block raises."""
        since = time.perf_counter()
        yield
        self._request_seconds[route].observe(time.perf_counter() - since)

    def render(self) -> bytes:
        """Returns the metrics as Prometheus text."""
        self._meters("gagpo_env_sessions").set(len(self._store))
        for what, total in (("resets", self._resets), ("steps", self._steps), ("replays", self._replays),
                            ("sessions_expired", self._store.expired)):
            self._meters.follow(f"gagpo_env_{what}_total", total)
        self._meters("gagpo_env_resident_memory_bytes").set(resident_bytes())
        return generate_latest(self._meters.registry)


def resident_bytes() -> int:
    """Returns the resident memory of this process and of its child processes, which are engines."""
    own, total = psutil.Process(), 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:  # it ended after it was listed
            continue
    return total
