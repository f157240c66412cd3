"""The run's own environment server as a member: a child process on this machine, or an actor on a node of a cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx

from deploy.members import exit_reasons
from deploy.members.placement import ClusterPlace
from deploy.members.ray_actor import Options, end_of, kill
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.controller.member import End
from services.errors import DeadlineExceeded, EnvFault
from services.http.bounded import get
from services.process.addresses import held_port, host_port
from services.process.child_processes import wait_or_kill
from services.telemetry.logs import get_logger, life_of

log = get_logger("processes")
POLL_S = 0.1
CONNECT_S = 1.0
STOP_GRACE_S = 10.0
LAST_WORDS_S = 2.0
HANDOVER_S = 10.0
"""Every worker has the new list of servers within this time. The old server's sessions are then rebuilt on others."""


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Returns whether a GET of `url` gives 200."""
    try:
        return get(url, seconds=timeout_s).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


class EnvServer:
    """One `gagpo serve-env` on this machine. It keeps its port over restarts, so its clients notice no change.

    It logs to the run's `folder`. Its stderr goes to the log of this process. It gets its `token` by an environment
    variable, because every user of this machine can read command lines.
    """

    role: str = "environment"
    beat: str | None = None

    def __init__(self, index: int, port: int, config_file: Path, folder: Path, token: str | None = None, *,
                 host: str = "127.0.0.1") -> None:
        self.name = f"environment server {index}"
        self.url = f"http://{host_port(host, port)}"
        self._address = host, port
        self._ends_at: float | None = None
        self._terminated = False
        self._command = [
            sys.executable, "-m", "deploy.cli", "serve-env", "--config", str(config_file),
            "--host", host, "--port", str(port), "--exit-with-parent", str(os.getpid()),
            "--run-folder", str(folder), "--rank", str(index),
        ]
        self._environ = {name: value for name, value in os.environ.items() if name != ENV_TOKEN_VARIABLE}
        if token is not None:
            self._environ[ENV_TOKEN_VARIABLE] = token
        self._process: subprocess.Popen[str] | None = None
        self._stderr: _Stderr | None = None

    def start(self) -> None:
        """Starts the process, without waiting for it."""
        self._process = subprocess.Popen(self._command, env=self._environ, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
                                         errors="replace")
        assert self._process.stderr is not None
        self._stderr = _Stderr(self._process.stderr, self.name)

    def ready(self) -> bool:
        """Whether the server accepts connections. It listens only once it can serve, so connecting is proof enough."""
        try:
            socket.create_connection(self._address, CONNECT_S).close()
        except OSError:
            return False
        return True

    def lacks(self) -> str:
        return ""  # this machine always has a place for the server

    def wait(self, seconds: float = 120.0) -> None:
        """Waits until the server answers, for callers without a supervisor. Raises EnvFault with its last line if it
        ends, and DeadlineExceeded after `seconds`."""
        deadline = time.monotonic() + seconds
        while not answers(f"{self.url}/healthz", 2.0):
            end = self.poll()
            if end is not None:
                raise EnvFault(f"{self.name} ended at start: {end.reason}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"{self.name} did not answer within {seconds:.0f} s; see its log")
            time.sleep(POLL_S)

    def poll(self) -> End | None:
        code = self._process.poll() if self._process else 0
        leaves = self._ends_at is not None and time.monotonic() > self._ends_at
        if code is None:
            if leaves and self._process is not None and not self._terminated:
                self._terminated = True
                self._process.terminate()  # and a later poll finds its end: the controller does not wait for it
            return None
        if leaves:
            return End("")
        last_words = self._stderr.last_words() if self._stderr else "it was not started"
        return exit_reasons.describe_exit(code, last_words, self.role)

    def drain(self) -> None:
        """Lets poll() end the server after HANDOVER_S, when every worker has a list of servers without it."""
        self._ends_at = time.monotonic() + HANDOVER_S

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        wait_or_kill(process, STOP_GRACE_S)


class PlacedServer:
    """One environment server on any node with room. It has a URL once it runs, and another one after a restart."""

    role: str = "environment"
    beat: str | None = None

    def __init__(self, index: int, make: Callable[[Options], Any], place: ClusterPlace) -> None:
        self.name = f"environment server {index}"
        self.url: str = ""
        """URL of the server; empty until the server answers."""
        self._make = make
        self._place = place
        self._handle: Any = None
        self._calls: list[Any] = []
        self._ends_at: float | None = None

    def start(self) -> None:
        self.url = ""
        self._place.ask()

    def ready(self) -> bool:
        return bool(self.url)

    def lacks(self) -> str:
        return self._place.lacks()

    def poll(self) -> End | None:
        import ray

        if self._ends_at is not None and time.monotonic() > self._ends_at:
            return End("")
        if not self._calls:
            if self._place.granted():
                self._handle = self._make(self._place.options(0))
                self._calls = [self._handle.open.remote(), self._handle.run.remote()]
            return None
        if not self.url and ray.wait(self._calls[:1], timeout=0)[0]:
            end = end_of(self._calls[:1], self.role)
            if end is not None and end.reason:
                return end
            self.url = str(ray.get(self._calls[0]))
        return end_of(self._calls[1:], self.role)

    def drain(self) -> None:
        """Lets poll() report the server's end after HANDOVER_S, when every worker has a list of servers without it."""
        self._ends_at = time.monotonic() + HANDOVER_S

    def stop(self) -> None:
        kill([] if self._handle is None else [self._handle])
        self._handle, self._calls, self.url = None, [], ""
        self._place.release()


class ServerHost:
    """The actor of a PlacedServer: one `gagpo serve-env` on the node where Ray has placed it."""

    def __init__(self, index: int, config_file: str, folder: str, token: str | None,
                 start_s: float) -> None:
        import ray

        self._node = ray.util.get_node_ip_address()
        self._folder, self._start_s = Path(folder), start_s
        self._name = f"environment-host-{index}"
        self._server = EnvServer(index, held_port(self._node), Path(config_file), self._folder, token,
                                 host=self._node)

    def open(self) -> str:
        """Starts the server. Returns its URL once it answers."""
        with life_of(self._name, self._folder, node=self._node):
            self._server.start()
            self._server.wait(self._start_s)
        return self._server.url

    def run(self) -> None:
        """Waits until the server ends. Then raises EnvFault with the server's last line."""
        with life_of(self._name, self._folder, node=self._node):
            while (end := self._server.poll()) is None:
                time.sleep(POLL_S)
        raise EnvFault(f"{self._server.name} ended: {end.reason}")


class _Stderr(threading.Thread):
    """Copies a child's stderr into this process's log, such as the last lines of an interpreter or JVM that crashes."""

    def __init__(self, stream: IO[str], name: str) -> None:
        super().__init__(name=f"stderr of {name}", daemon=True)
        self._stream = stream
        self._child = name
        self._last = "it printed nothing"
        self.start()

    def run(self) -> None:
        with self._stream:
            for line in filter(None, map(str.rstrip, self._stream)):
                self._last = line
                log.warning("on stderr", child=self._child, line=line)

    def last_words(self) -> str:
        """Returns the last line of a child that has ended. Waits at most LAST_WORDS_S for the end of its stderr, which
        may be held open by a child of the child."""
        self.join(LAST_WORDS_S)
        return self._last
