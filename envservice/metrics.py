"""The server's own metrics, in a registry of their own so that several apps can live in one process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ServerMetrics:
    """Counters per server process; `live` is asked for the number of sessions at each scrape."""

    def __init__(self, live: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.resets = Counter("gagpo_env_resets", "Episodes started.", registry=self.registry)
        self.steps = Counter("gagpo_env_steps", "Steps answered, repeated ones included.", registry=self.registry)
        self.replays = Counter("gagpo_env_replays", "Sessions rebuilt from their actions.", registry=self.registry)
        self.errors = Counter("gagpo_env_errors", "Refused requests and elements.", ["type"], registry=self.registry)
        self.seconds = Histogram(
            "gagpo_env_request_seconds", "Whole requests, by route.", ["route"], registry=self.registry,
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )
        sessions = Gauge("gagpo_env_sessions", "Live sessions.", registry=self.registry)
        sessions.set_function(live)
