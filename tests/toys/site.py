"""The machines of a rehearsal on one machine: Ray nodes, a laptop, and containers of Redis and environment servers.

All are on one bridge and have addresses of their own. The laptop has no Ray node; from it jobs are submitted.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from deploy.monitor.servers import prometheus
from services.config.secrets import ENV_TOKEN_VARIABLE
from tests.toys.container import missing, podman
from tests.toys.nodes import Node, named_nodes, nodes, orphaned, why_not
from tests.toys.ray_node import RayNode
from tests.toys.site_containers import (
    FIRST_SERVER,
    GAMES,
    REDIS,
    ROOT,
    Containers,
    container_names,
    remove_orphans,
)

BIN = Path(sys.executable).parent
LONGEST_S = 1200.0
"""Deadline of each wait in seconds: generous, because the machine may be slow and busy."""
POLL_S = 0.5
FOLDERS = Path("/tmp")
NAME = "environment"
"""The name that leads to all environment servers."""


def cannot() -> str:
    """Returns why no rehearsal can be held on this machine; empty if one can."""
    tools = [name for name in ("unshare", "setpriv", "mount") if shutil.which(name) is None]
    return why_not() or missing("alfworld") or (f"{tools[0]} is not installed" if tools else "")


class Site:
    """The machines, with an environment server. `site` makes them and takes them away."""

    def __init__(self, folder: Path, made: Sequence[Node], containers: Containers, *, cpus: int) -> None:
        self.folder, self._containers, self._made = folder, containers, made
        self.head_node, *others, self.laptop = made
        self.environment = _environment(folder)
        (folder / "tmp").mkdir()
        (folder / "runs").mkdir()
        head = ("--head", "--port", "6379", "--dashboard-host", self.head_node.address)
        self.head, *self.workers = [
            RayNode(node, folder, folder / "tmp", self.environment, ("--num-cpus", str(cpus), *options))
            for node, options in ((self.head_node, head), *(
                (node, ("--address", f"{self.head_node.address}:6379")) for node in others))]
        self._servers: list[str] = []
        self._leaving: list[str] = []
        self.want_servers(1)

    @property
    def runs(self) -> Path:
        """The storage that all nodes share."""
        return self.folder / "runs"

    @property
    def dashboard(self) -> str:
        return f"http://{self.head_node.address}:8265"

    @property
    def servers(self) -> list[str]:
        """URLs of the environment servers."""
        return [f"http://{address}:8100" for address in self._addresses()]

    def arguments(self) -> list[str]:
        """Returns what leads a run to this site."""
        return [f"runs_dir={self.runs}", f"redis.url=redis://{self._containers.address(REDIS)}:6379/0",
                f"redis.password_file={self.folder / 'redis'}",
                f"env.name={GAMES}:SPEC", f"env.urls=[http://{NAME}:8100]", f"env.token_file={self.folder / 'env'}",
                f"metrics.host={self.head_node.address}"]

    def on_laptop(self, *words: str) -> list[str]:
        """Returns a command that runs on the laptop."""
        return [*self.laptop.enter, *words]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Calls a command on the laptop."""
        return subprocess.run(self.on_laptop(*words), env=self.environment, cwd=self.folder, capture_output=True,
                              text=True, timeout=LONGEST_S, check=False)

    def want_servers(self, count: int) -> None:
        """Starts containers until there are so many, and lets the name lead to so many. `end_servers` ends others."""
        while len(self._servers) < count:
            self._servers.append(self._containers.start_server(len(self._servers)))
        self._leaving, self._servers = self._servers[count:], self._servers[:count]
        for node in self._made:
            node.knows(NAME, self._addresses())

    def _addresses(self) -> list[str]:
        return [self._containers.address(FIRST_SERVER + index) for index in range(len(self._servers))]

    def end_servers(self) -> None:
        """Ends the containers to which the name leads no more."""
        for container in self._leaving:
            podman("rm", "--force", "--time", "15", container)
        self._leaving = []

    def start_nodes(self) -> None:
        """Starts the head, then the other nodes, and waits until Ray counts them all and every server answers.

        On a busy machine a server takes longer to start than a new run waits for it.
        """
        self.head.start()
        self._wait_for(1)
        for node in self.workers:
            node.start()
        self._wait_for(1 + len(self.workers))
        self._counted()

    def wait_for_nodes_to_leave(self) -> None:
        """Waits until all nodes but the head have ended by themselves."""
        for node in self.workers:
            node.wait(LONGEST_S)

    def _wait_for(self, nodes: int) -> None:
        until = time.monotonic() + LONGEST_S
        while self._alive() != nodes:
            assert time.monotonic() < until, f"no {nodes} Ray nodes in {LONGEST_S:.0f} s: {self.head.said()}"
            time.sleep(POLL_S)

    def _alive(self) -> int:
        """Returns the number of living Ray nodes. Raises AssertionError if the head has ended."""
        assert self.head.alive, self.head.said()
        try:
            reply = httpx.get(f"{self.dashboard}/nodes?view=summary", trust_env=False, timeout=5, headers={
                "authorization": f"Bearer {(self.folder / 'ray').read_text()}"})
            return sum(node["raylet"].get("state") == "ALIVE" for node in reply.json()["data"]["summary"])
        except (httpx.HTTPError, ValueError, KeyError):
            return 0

    def steps_by_server(self) -> dict[str, float]:
        """Returns how many steps each server has taken since it was started; {} if one does not answer."""
        try:
            texts = {url: httpx.get(f"{url}/metrics", trust_env=False, timeout=30, headers={
                "authorization": f"Bearer {self._containers.token}"}).text for url in self.servers}
        except httpx.HTTPError:
            return {}
        return {url: sum(sample.value for family in text_string_to_metric_families(text) for sample in family.samples
                         if sample.name == "gagpo_env_steps_total") for url, text in texts.items()}

    def rate(self, seconds: float) -> float:
        """Measures the steps that all servers take in a second."""
        began, before = self._counted()
        time.sleep(seconds)
        ended, after = self._counted()
        return sum(after[url] - before[url] for url in before) / (ended - began)

    def _counted(self) -> tuple[float, dict[str, float]]:
        """Returns the time and the steps of every server, once all have answered."""
        until = time.monotonic() + LONGEST_S
        while not (found := self.steps_by_server()):
            assert time.monotonic() < until, f"not every environment server answered in {LONGEST_S:.0f} s"
            time.sleep(POLL_S)
        return time.monotonic(), found

    @contextmanager
    def watched(self) -> Iterator[str]:
        """Runs a Prometheus over the runs until the block ends. Yields its URL."""
        os.environ[ENV_TOKEN_VARIABLE] = self._containers.token
        with prometheus(self.runs, port=0) as url:
            yield url

    def keep_logs(self, folder: Path) -> None:
        """Copies the logs of the nodes and the job, and the run's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.folder.glob("*.log"):
            shutil.copy(log, folder)
        shutil.copytree(self.runs, folder / "runs", dirs_exist_ok=True, ignore=shutil.ignore_patterns("token"))

    def kill_nodes(self) -> None:
        for node in (self.head, *self.workers):
            node.kill()


@contextmanager
def site(*, worker_nodes: int, cpus: int, step_s: float) -> Iterator[Site]:
    """Makes a site with a head and so many other Ray nodes of `cpus` CPUs. Ends and removes all of it at the end."""
    sweep()
    folder = FOLDERS / f"gr{os.getpid()}"  # short: Ray's sockets lie below it
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(mode=0o711)  # Redis' user reads its settings there
        containers = Containers(folder, step_s=step_s)
        stack.callback(containers.remove)
        _write_secrets(folder, env=containers.token, redis=containers.start_redis(), ray=secrets.token_hex(32))
        made = stack.enter_context(nodes(worker_nodes + 2, subnet=containers.subnet, bridge=containers.bridge))
        one = Site(folder, made, containers, cpus=cpus)
        stack.callback(one.kill_nodes)
        yield one


def sweep() -> None:
    """Removes the containers and folders of rehearsals that were killed."""
    remove_orphans()
    for folder in FOLDERS.glob("gr[0-9]*"):
        if orphaned(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def remains(pid: int) -> list[str]:
    """Returns what the process has made and is still there, by name."""
    folder = FOLDERS / f"gr{pid}"
    processes = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
    return [*(name for name in (*container_names(), *named_nodes()) if name.startswith(f"gagpo-{pid}")),
            *([str(folder)] if folder.exists() else []),
            *(str(words) for words in processes if words and any(f"{folder}/" in word for word in words))]


def _write_secrets(folder: Path, **values: str) -> None:
    for name, secret in values.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(secret)


def _environment(folder: Path) -> dict[str, str]:
    """Returns the environment variables of all processes that are not in a container."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("ALFWORLD_DATA", "RAY_ADDRESS") and not name.lower().endswith("_proxy")}
    return kept | {
        "PYTHONPATH": str(ROOT), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "ray"), "RAY_JOB_STOP_WAIT_TIME_S": "60",
        "PYTHONUNBUFFERED": "1",  # what `ray job submit` says is read while it goes on
        # All nodes share the memory of this machine, so its pressure says nothing about a node.
        "RAY_memory_monitor_refresh_ms": "0"}
