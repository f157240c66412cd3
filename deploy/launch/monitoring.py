"""Starts a run's monitoring: the controller's heartbeat, the endpoint of all metrics, and Prometheus' target file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urlsplit

from deploy.launch.topology import Topology
from deploy.runs.folder import RunFolder
from deploy.runs.live_status import TargetGroup
from deploy.runs.stage import read_stage
from services.controller.telemetry import Telemetry
from services.files import Damaged, read_json, write_whole
from services.process.addresses import host_port, is_every_address
from services.records import Version
from services.store.connection import briefly
from services.store.store import Store
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Beating, Heartbeat, decode

READ_S = 5.0
"""Deadline in seconds for reading the store in a scrape. Prometheus gives up after ten."""


@contextmanager
def monitoring(parts: Topology, telemetry: Telemetry, folder: RunFolder, *,
               note: Callable[[str], object]) -> Iterator[None]:
    """Monitors the run while the block is active. Raises UserError if metrics.host and metrics.port cannot be bound."""
    config = parts.config
    store = Store(parts.store_url, parts.run, timeout_s=READ_S, settings=briefly(config.redis))
    with serving(lambda: decode(store.state.beats()), host=config.metrics.host, port=config.metrics.port) as bound:
        address = _reached(bound, parts.address)
        targets = _Targets(folder.targets, lambda urls: target_groups(config.name, address, urls), note)

        def fill() -> None:
            telemetry.fill(store, config, parts.supervisor)
            targets.write(parts.urls())

        targets.write(parts.urls())
        _forget_killed(folder, address)
        note(f"metrics on http://{address}/metrics")
        try:
            with Beating(telemetry.heartbeat, store.state.beat, fill=fill), _weights_heartbeat(parts, store):
                yield
        finally:
            with suppress(OSError):
                folder.targets.unlink(missing_ok=True)


def _reached(bound: str, node: str) -> str:
    """Returns the HOST:PORT at which other machines reach an endpoint. If it listens on all addresses, HOST is `node`,
    this machine's address in the cluster: 0.0.0.0 leads each machine to itself."""
    parts = urlsplit(f"//{bound}")
    return host_port(node, parts.port or 0) if is_every_address(parts.hostname or "") else bound


class _Targets:
    """Keeps Prometheus' target file. A folder that takes no file, because the disk is full or it is another user's,
    ends no run: one warning says so, and each heartbeat tries again.
    """

    def __init__(self, path: Path, groups: Callable[[Sequence[str]], object], note: Callable[[str], object]) -> None:
        self._path, self._groups, self._note = path, groups, note
        self._written: tuple[str, ...] | None = None
        self._failing = False

    def write(self, urls: tuple[str, ...]) -> None:
        """Writes the file if the environment servers are others than those in it."""
        if urls == self._written:
            return
        try:
            for folder in (self._path.parent.parent, self._path.parent):  # not those above: they may be unavailable
                folder.mkdir(exist_ok=True)
            write_whole(self._path, json.dumps(self._groups(urls), indent=1) + "\n")
        except OSError as error:
            if not self._failing:
                self._note(f"warning: {self._path} cannot be written ({error.strerror}), so Prometheus and "
                           "`gagpo status` do not find the processes of this run")
            self._failing = True
        else:
            self._written, self._failing = urls, False


def _weights_heartbeat(parts: Topology, store: Store) -> AbstractContextManager[object]:
    """Sends the weights actor's heartbeat for it, because that actor has no connection to the store.

    Sends nothing if the actor does not answer.
    """
    if parts.weights is None:
        return nullcontext()
    import ray

    from services.weights.actor import KEEP

    heartbeat = Heartbeat("weights", "weights")
    held: Version | None = None
    heartbeat.doing(f"holds the last {KEEP} versions")

    def ask() -> None:
        nonlocal held
        latest: Version | None = ray.get(parts.weights.latest.remote(), timeout=READ_S)
        if latest is not None and latest != held:
            held = latest
            heartbeat.holds(latest.short)
            heartbeat.progressed()

    return Beating(heartbeat, store.state.beat, fill=ask)


def target_groups(run: str, address: str, env_urls: Sequence[str]) -> list[dict[str, object]]:
    """Returns the targets in Prometheus' file_sd format: first the driver, then environment servers by URL scheme."""
    groups: list[dict[str, object]] = [{"targets": [address], "labels": {"run": run, "source": "driver"}}]
    for scheme in ("http", "https"):
        targets = [urlsplit(url).netloc for url in env_urls if urlsplit(url).scheme == scheme]
        if targets:
            groups.append({"targets": targets, "labels": {
                "run": run, "source": "environment", "__scheme__": scheme}})
    return groups


def _forget_killed(folder: RunFolder, address: str) -> None:
    """Removes the target files of killed runs that name `address`: Prometheus would store the metrics of `folder`'s run
    under their names too. Files with other addresses stay, for the alert about a dead driver."""
    for left in folder.targets.parent.glob("*.json"):
        with suppress(OSError, Damaged):  # it is another user's, or gone; what is damaged, `gagpo status` names
            stage = read_stage(RunFolder(folder.path.parent / left.stem).stage_file)
            groups = read_json(left, list[TargetGroup])
            if stage is not None and not stage.alive and groups and groups[0].targets == [address]:
                left.unlink()
