"""Keeps the numbers of rollout workers and environment servers at the wanted numbers during a run.

    wanted.json in the run's folder (by `gagpo scale`, or by `autoscale`) ▸ fleets ▸ the list of servers in the store

The wanted numbers start as in the config. deploy/runs/wanted.py says which hold after `--resume`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec

from deploy.launch.topology import Topology
from deploy.members.ray_actor import Actor
from deploy.runs.folder import RunFolder
from deploy.runs.live_status import scrape
from deploy.runs.wanted import NOTHING_WANTED, numbers, read_wanted, write_wanted
from services.controller.autoscale import EnvironmentLoad, RolloutLoad, environment_servers, rollout_workers
from services.controller.supervise import Fleet
from services.files import Damaged
from services.outages import LastValue
from services.process.threads import DaemonThread
from services.store.lease import Lease
from services.telemetry.catalogue import Snapshot

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
            if not metrics:  # unavailable or too busy for a moment: its counters did not start again
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
        snapshots = self._reading.result() if self._reading is not None and self._reading.done() else {}
        if self._reading is None or self._reading.done():
            urls = self._parts.urls()
            with DaemonThread("environment-load") as reader:  # it ends with this read, and nobody waits for it
                self._reading = reader.submit(lambda: {url: scrape(url, seconds=ANSWER_S) for url in urls})
        return snapshots

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
    counters: Counters = {}
    for sample, _, value in metrics.get(name, ()):
        if sample in (f"{name}_sum", f"{name}_count"):
            counters[process, sample] = counters.get((process, sample), 0.0) + (value or 0.0)
    return counters


def _sum(metrics: Mapping[str, Any] | Snapshot, name: str, **labels: str) -> float:
    return sum(value or 0.0 for sample, its, value in metrics.get(name, ())
               if sample == name and labels.items() <= its.items())


LOOK_S = 1.0
"""Seconds between two reads of wanted.json."""


class Scaling:
    """The fleets of one run. `worker(index)` creates a rollout worker. The controller's loop calls `tick`."""

    def __init__(self, parts: Topology, lease: Lease, worker: Callable[[int], Actor], *,
                 note: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = Fleet(parts.supervisor, worker)
        self._parts, self._lease, self._note, self._clock = parts, lease, note, clock
        self._folder = RunFolder(parts.folder)
        self._wanted = NOTHING_WANTED
        self._file = LastValue(lambda: read_wanted(self._folder), seconds=parts.config.learner.collective_s)
        self._damage = ""
        self._looked_at = float("-inf")
        self._load = LoadMeter(parts)
        self._decided_at = clock()

    def start(self) -> None:
        """Brings both fleets to their wanted numbers. A resumed run uses those that it had before, and says so."""
        self._looked_at = self._clock()
        self._wanted = self._file.now()
        config = self._parts.config
        kept = [f"{role} {now}" for role, now, first in zip(
            ("rollout", "env"), numbers(config, self._wanted), numbers(config), strict=True) if now != first]
        if kept:
            self._note(f"scaled before: {', '.join(kept)}")
        self._fill()
        self._publish()

    def tick(self) -> None:
        """Follows wanted.json, autoscales if the config says so, and publishes the list of servers."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        self._follow()
        self._autoscale(now)
        self._fill()
        self._publish()

    def _follow(self) -> None:
        """Reads wanted.json. If it is damaged, the numbers stay as they are, and one warning says so."""
        try:
            self._wanted, self._damage = self._file.now(), ""
        except Damaged as error:
            if str(error) != self._damage:
                self._damage = str(error)
                self._note(f"warning: {error}")

    def _autoscale(self, now: float) -> None:
        rules = self._parts.config.autoscale
        if rules.rollout is None and (rules.env is None or self._parts.servers is None):
            return
        self._load.look()
        if now - self._decided_at < rules.pause_seconds:
            return
        self._decided_at = now
        worked, answered = self._load.take()
        self._change("rollout", self.workers, rollout_workers(self.workers.wanted, worked, rules))
        if (servers := self._parts.servers) is not None:
            self._change("env", servers, environment_servers(servers.wanted, answered, rules))

    def _change(self, role: str, fleet: Fleet[Any], count: int) -> None:
        """Sets the wanted number of a role. Adds none while members still start: these may already suffice."""
        starting = not all(self._parts.supervisor.was_ready(one) for one in fleet.members)
        if count == fleet.wanted or (count > fleet.wanted and starting):
            return
        wanted = msgspec.structs.replace(self._wanted, **{role: count})
        try:
            write_wanted(self._folder, wanted)
        except OSError as error:  # a full disk: the next decision comes soon
            self._note(f"warning: {self._folder.wanted} could not be written ({error})")
            return
        self._note(f"autoscale: {role} {fleet.wanted} -> {count}")
        self._wanted = wanted
        self._file.keep(wanted)

    def _fill(self) -> None:
        workers, servers = numbers(self._parts.config, self._wanted)
        self.workers.want(workers)
        if self._parts.servers is not None:
            self._parts.servers.want(servers)

    def _publish(self) -> None:
        """Publishes the current list of servers if the store has another, or has lost it. Never publishes an empty
        list, which would only stop the workers."""
        urls, store = self._parts.urls(), self._parts.store
        if urls and urls != store.state.servers():
            store.state.publish_servers(self._lease, urls)
