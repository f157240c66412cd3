"""Keeps the numbers of rollout workers and environment servers at the wanted numbers while a run goes on.

    wanted.json in the run's folder (by `gagpo scale`, or by `autoscale`) ▸ fleets ▸ the list of servers in the store

The wanted numbers start as in the config. deploy/runs/wanted.py says which hold after `--resume`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from deploy.launch.load import LoadMeter
from deploy.launch.topology import Topology
from deploy.members.ray_actor import Actor
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import NOTHING_WANTED, numbers, read_wanted, write_wanted
from services.controller.autoscale import environment_servers, rollout_workers
from services.controller.fleet import Fleet
from services.files import Damaged
from services.last_value import LastValue
from services.store.lease import Lease

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
        """Wants `count` members of a role. It adds none while others still start and have not relieved the rest yet."""
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
        """Publishes the present list of servers to all workers, again if a Redis that died has lost it. Never an empty
        list: it would only stop them."""
        urls, store = self._parts.urls(), self._parts.store
        if urls and urls != store.servers():
            store.publish_servers(self._lease, urls)
