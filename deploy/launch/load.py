"""Measures how loaded rollout workers and environment servers are, for autoscaling."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from deploy.launch.topology import Topology
from services.controller.autoscale import EnvironmentLoad, RolloutLoad
from services.process.daemon_thread import DaemonThread
from services.telemetry.names import Snapshot
from services.telemetry.scrape import scraped

QUEUE, REQUEST = "gagpo_rollout_queue_seconds", "gagpo_env_request_seconds"
ANSWER_S = 5.0
"""Longest wait for the metrics of one server, in seconds."""
Counters = dict[tuple[str, str], float]
"""Values of counters, by (process, counter name)."""


class LoadMeter:
    """Samples the load with each `look`, and adds up all samples since the last `take`."""

    def __init__(self, parts: Topology) -> None:
        self._parts = parts
        self._reading: Future[dict[str, Snapshot]] | None = None
        self._before: Counters = {}
        self._gained: dict[str, float] = {}
        self._most_playing = 0.0
        self._fill = 0.0

    def look(self) -> None:
        """Takes one sample: workers report by their last heartbeats, servers by their metrics."""
        now: Counters = {}
        playing = 0.0
        for name, beat in self._parts.supervisor.beats.items():
            if beat.get("role") == "rollout":
                metrics: Mapping[str, Any] = beat.get("metrics", {})
                playing += _sum(metrics, "gagpo_rollout_tickets", state="playing")
                now |= _histogram(name, metrics, QUEUE)
        sessions = limit = 0.0
        for url, metrics in self._servers().items():
            if not metrics:  # away for a moment, or too busy to answer; its counters have not begun again
                continue
            sessions += _sum(metrics, "gagpo_env_sessions")
            limit += _sum(metrics, "gagpo_env_sessions_limit")
            now |= _histogram(url, metrics, REQUEST)
            now[url, "full"] = _sum(metrics, "gagpo_env_errors_total", type="full")
        self._most_playing = max(self._most_playing, playing)
        self._fill = max(self._fill, sessions / limit if limit else 0.0)
        for key, value in now.items():
            # The counters of a restarted process begin at 0 again.
            gained = value - self._before.get(key, value)
            self._gained[key[1]] = self._gained.get(key[1], 0.0) + (gained if gained >= 0 else value)
        self._before |= now

    def _servers(self) -> dict[str, Snapshot]:
        """Returns each server's metrics as a thread read them last. The controller's loop never waits for a server."""
        if not self._parts.config.autoscale.env:
            return {}
        found = self._reading.result() if self._reading is not None and self._reading.done() else {}
        if self._reading is None or self._reading.done():
            urls = self._parts.urls()
            with DaemonThread("environment-load") as reader:  # it ends with this read, and nobody waits for it
                self._reading = reader.submit(lambda: {url: scraped(url, seconds=ANSWER_S) for url in urls})
        return found

    def take(self) -> tuple[RolloutLoad, EnvironmentLoad]:
        """Returns the load since the last call, and starts a new interval."""
        gained, most, fill = self._gained, self._most_playing, self._fill
        self._gained, self._most_playing, self._fill = {}, 0.0, 0.0
        episodes, requests = gained.get(f"{QUEUE}_count", 0.0), gained.get(f"{REQUEST}_count", 0.0)
        return (
            RolloutLoad(episodes=int(episodes), most_playing=int(most), slots=self._parts.config.rollout.slots,
                        wait_seconds=gained.get(f"{QUEUE}_sum", 0.0) / max(1.0, episodes)),
            EnvironmentLoad(requests=int(requests), fill=fill, refused=int(gained.get("full", 0.0)),
                            seconds=gained.get(f"{REQUEST}_sum", 0.0) / max(1.0, requests)))


def _histogram(process: str, metrics: Mapping[str, Any] | Snapshot, name: str) -> Counters:
    """Returns the sum and the count of a histogram over all its labels."""
    found: Counters = {}
    for sample, _, value in metrics.get(name, ()):
        if sample in (f"{name}_sum", f"{name}_count"):
            found[process, sample] = found.get((process, sample), 0.0) + (value or 0.0)
    return found


def _sum(metrics: Mapping[str, Any] | Snapshot, name: str, **labels: str) -> float:
    return sum(value or 0.0 for sample, its, value in metrics.get(name, ())
               if sample == name and labels.items() <= its.items())
