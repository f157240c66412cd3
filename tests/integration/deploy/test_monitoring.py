"""The metrics endpoint of a run over real Redis and real HTTP, as Prometheus and `gagpo status` read it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from ports import likely_port, needs_ipv6
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_until

from deploy.commands.status import table
from deploy.launch.monitoring import monitoring
from deploy.launch.topology import Topology
from deploy.runs.configs import lay_over, load_config
from deploy.runs.folder import RunFolder
from deploy.runs.live_status import Seen, look
from deploy.runs.stage import Stage, StageRecord
from services.config.file import dump_config
from services.controller.supervise import Supervisor
from services.controller.telemetry import Telemetry
from services.errors import UserError
from services.records import Ticket, Version
from services.store.redis_server import private_redis
from services.store.store import Store
from services.telemetry.exposition import serving
from services.telemetry.heartbeat import Heartbeat, decode
from services.weights.pack import pack_tensors

URLS = ("http://127.0.0.1:1", "https://env.example:8443")
"""Nobody answers there: programs without rights get no port below 1024."""
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    with private_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    dump_config(load_config("alfworld-tiny", ()), tmp_path / "config.yaml")
    return RunFolder(tmp_path)


@pytest.fixture
def parts(redis_url: str, folder: RunFolder) -> Topology:
    run = f"run-{time.monotonic_ns()}"
    config = load_config(folder.config_file)
    return Topology(
        config=config, run=run, folder=folder.path, store=Store(redis_url, run),
        store_url=redis_url, given_urls=lambda: URLS, weights=None, weights_name="",
        supervisor=Supervisor(print, config.supervision))


def issue(store: Store) -> None:
    lease = store.leases.acquire("controller", "test")
    store.issue(lease, [Ticket(group="train/0", k=k, size=2, task="toy/train/a", seed=k, kind="train", temperature=1.0,
                               max_steps=5) for k in range(2)], capacity=8)


def scrape(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    reply = httpx.get(f"http://{address}/metrics", timeout=60)
    assert reply.status_code == 200
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(reply.text) for sample in family.samples}


def until(address: str, name: str, value: float | None, **labels: str) -> None:
    """Waits until a series has this value; None: until it is gone."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := scrape(address).get((name, frozenset(labels.items())))) != value:
        assert time.monotonic() < deadline, f"{name} is {found}, not {value}"
        time.sleep(0.2)


def test_workers_are_shown_while_they_beat_and_the_store_beside_them(
        parts: Topology, folder: RunFolder, capsys, monkeypatch):
    since = time.monotonic()
    issue(parts.store)
    assert len(parts.store.claim("rollout-0", 1)) == 1
    for name, steps in (("rollout-0", 3), ("rollout-1", 4)):
        heartbeat = Heartbeat(name, "rollout")
        heartbeat.doing("waits for tickets")
        heartbeat.meters("gagpo_rollout_env_steps_total").inc(steps)
        parts.store.state.beat(name, heartbeat.beat(), ttl_s=600.0)
    notes: list[str] = []
    with monitoring(parts, Telemetry(), folder, note=notes.append):
        groups = json.loads(folder.targets.read_text())
        (address,) = groups[0]["targets"]
        assert notes == [f"metrics on http://{address}/metrics"]
        assert [(group["targets"], group["labels"].get("__scheme__")) for group in groups[1:]] == [
            (["127.0.0.1:1"], "http"), (["env.example:8443"], "https")]
        until(address, "gagpo_rollout_env_steps_total", 3, worker="rollout-0")
        until(address, "gagpo_rollout_env_steps_total", 4, worker="rollout-1")
        until(address, "gagpo_store_tickets", 1, worker="controller", state="waiting")
        until(address, "gagpo_store_tickets", 1, worker="controller", state="claimed")
        until(address, "gagpo_store_groups_issued_total", 1, worker="controller")
        age = scrape(address)["gagpo_store_oldest_ticket_age_seconds", frozenset({("worker", "controller")})]
        assert 0 < age <= time.monotonic() - since + 1
        assert httpx.get(f"http://{address}/", timeout=60).status_code == 404
        parts.store.state.beat("rollout-1", heartbeat.beat(), ttl_s=0.05)
        until(address, "gagpo_rollout_env_steps_total", None, worker="rollout-1")
        workers = {dict(labels)["worker"] for _, labels in scrape(address)}
        assert workers == {"rollout-0", "controller"}, "a dead worker leaves no series"
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        lines = table(Seen(now=look(folder.path)))
        assert [line.split()[0] for line in lines[1:]] == ["controller", "rollout-0", "env", "env", "store:"]
        assert "waits for tickets" in lines[2]
        assert all("does not answer" in line for line in lines[3:5])
    assert not folder.targets.exists()
    assert look(folder.path) == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("host", "node", "told"), [
    ("0.0.0.0", "10.0.0.5", "10.0.0.5"), pytest.param("::", "fd00::5", "[fd00::5]", marks=needs_ipv6),
    ("127.0.0.1", "10.0.0.5", "127.0.0.1")])
def test_an_endpoint_on_all_addresses_is_told_by_that_of_its_node(
        host: str, node: str, told: str, parts: Topology, folder: RunFolder):
    """A Prometheus and a `gagpo status` on another node asked their own machine."""
    port, notes = likely_port(), list[str]()
    parts = dataclasses.replace(parts, address=node, config=lay_over(parts.config, {
        "metrics.host": host, "metrics.port": port}))
    with monitoring(parts, Telemetry(), folder, note=notes.append):
        assert json.loads(folder.targets.read_text())[0]["targets"] == [f"{told}:{port}"]
        assert notes == [f"metrics on http://{told}:{port}/metrics"]


def test_a_new_run_forgets_a_killed_one_at_its_address(parts: Topology, folder: RunFolder):
    """Prometheus took the new run's metrics under both names. Elsewhere it stays, for the alert that tells of it."""
    port = likely_port()
    config = lay_over(parts.config, {"metrics.port": port})
    for name, address, killed in (("here", port, True), ("elsewhere", 9, True), ("alive", port, False)):
        other = RunFolder(folder.path.with_name(f"{folder.path.name}-{name}"))
        other.path.mkdir()
        other.targets.parent.mkdir(parents=True, exist_ok=True)
        other.targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{address}"]}]))
        with StageRecord(other.stage_file):
            left = other.stage_file.read_bytes()
        stage = msgspec.json.decode(left, type=Stage)
        other.stage_file.write_bytes(msgspec.json.encode(msgspec.structs.replace(stage, born=0.0)) if killed else left)
    with monitoring(dataclasses.replace(parts, config=config), Telemetry(), folder, note=print):
        mine = folder.targets.parent.glob(f"{folder.path.name}*.json")
        assert {path.stem.removeprefix(folder.path.name) for path in mine} == {"", "-elsewhere", "-alive"}


def test_a_list_of_targets_that_cannot_be_written_ends_no_run_and_is_written_later(parts: Topology, tmp_path: Path):
    """The disk was full, or the first user of a common runs_dir had made .monitor for himself."""
    folder, notes = RunFolder(tmp_path / "runs" / "mine"), list[str]()
    folder.path.mkdir(parents=True)
    dump_config(parts.config, folder.config_file)
    (tmp_path / "runs" / ".monitor").write_text("in the way")
    with monitoring(parts, Telemetry(), folder, note=notes.append):
        assert look(folder.path) == {}
        wait_until(lambda: "controller" in parts.store.state.beats())
        (tmp_path / "runs" / ".monitor").unlink()
        wait_until(lambda: "controller" in look(folder.path))
        shutil.rmtree(tmp_path / "runs" / ".monitor")
        (tmp_path / "runs" / ".monitor").write_text("in the way")
    assert [note.partition(" ")[0] for note in notes] == ["warning:", "metrics"]
    assert f"{folder.targets} cannot be written" in notes[0]


@pytest.mark.ray
def test_the_weights_actor_is_shown_with_the_version_that_it_holds(parts: Topology, folder: RunFolder, monkeypatch):
    import ray

    from services.weights.actor import WeightsActor

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        weights = WeightsActor.remote()
        packed = pack_tensors([("w", np.arange(4, dtype=np.float32))])
        version = Version(incarnation=1, step=3, digest="d")
        ray.get(weights.publish.remote(version, packed.manifest, packed.buffer), timeout=60)
        with monitoring(dataclasses.replace(parts, weights=weights), Telemetry(), folder, note=print):
            deadline = time.monotonic() + DEADLINE_S
            while (beat := look(folder.path).get("weights")) is None:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert (beat.role, beat.version, beat.doing) == ("weights", "1.3", "holds the last 2 versions")
        assert 0 < beat.progress <= beat.at
    finally:
        ray.shutdown()


def test_a_store_that_stays_away_fails_the_scrape():
    away = Store("redis://127.0.0.1:1/0", "run", timeout_s=0.2)
    with serving(lambda: decode(away.state.beats()), host="127.0.0.1", port=0) as address:
        assert httpx.get(f"http://{address}/metrics", timeout=60).status_code == 503


def test_a_port_that_is_taken_is_the_users_to_change():
    with serving(dict, host="127.0.0.1", port=0) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(UserError, match=r"metrics\.port"), serving(dict, host="127.0.0.1", port=port):
            pass
