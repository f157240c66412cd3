"""Keeps the numbers of rollout workers and environment servers at the wanted numbers while a run goes on.

    wanted.json in the run's folder (by `gagpo scale`, or by `autoscale`) ▸ fleets ▸ the list of servers in the store

The wanted numbers start as in the config. They are kept in the run's folder, so `--resume` keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from deploy.launch.load import LoadMeter
from deploy.launch.topology import Topology
from deploy.members.ray_actor import Actor
from deploy.runs.folder import RunFolder
from deploy.runs.wanted import WantedNumbers, read_wanted, write_wanted
from services.controller.autoscale import environment_servers, rollout_workers
from services.controller.fleet import Fleet
from services.files import Damaged
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
        self._wanted = WantedNumbers()
        self._damage = ""
        self._published: tuple[str, ...] = ()
        self._looked_at = float("-inf")
        self._load = LoadMeter(parts)
        self._decided_at = clock()

    def start(self) -> None:
        """Brings both fleets to their wanted numbers. A resumed run uses those that it had before."""
        self._looked_at = self._clock()
        self._wanted = read_wanted(self._folder)
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
            self._wanted, self._damage = read_wanted(self._folder), ""
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
        rollout, servers = self._load.take()
        env = self._parts.servers.wanted if self._parts.servers else 0
        chosen = {"rollout": rollout_workers(self.workers.wanted, rollout, rules) if rules.rollout else None,
                  "env": environment_servers(env, servers, rules) if rules.env and env else None}
        present = {"rollout": self.workers.wanted, "env": env}
        changed = {role: count for role, count in chosen.items() if count is not None and count != present[role]}
        for role, count in changed.items():
            self._note(f"autoscale: {role} {present[role]} -> {count}")
        if changed:
            self._wanted = msgspec.structs.replace(self._wanted, **changed)
            write_wanted(self._folder, self._wanted)

    def _fill(self) -> None:
        config = self._parts.config
        self.workers.want(self._wanted.rollout or config.rollout.workers)
        if self._parts.servers is not None:
            self._parts.servers.want(self._wanted.env or config.env.servers)

    def _publish(self) -> None:
        """Publishes the present list of servers to all workers. Never an empty list: it would only stop them."""
        urls = self._parts.urls()
        if urls and urls != self._published:
            self._parts.store.publish_servers(self._lease, urls)
            self._published = urls
