"""The kinds of process that a run keeps alive, each as a Member of services/controller/supervise.py."""

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

from deploy.launch import endings
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.controller.supervise import End
from services.errors import DeadlineExceeded, EnvFault, GagpoError
from services.process.child_processes import wait_or_kill
from services.telemetry.logs import get_logger

log = get_logger("processes")
POLL_S = 0.1
CONNECT_S = 1.0
STOP_GRACE_S = 10.0
LAST_WORDS_S = 2.0


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Whether a GET of `url` gives 200. No proxies from the environment: the server is on this machine."""
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


class EnvServer:
    """One `gagpo serve-env` on this machine. It keeps its port over restarts, so clients need not be told.

    It logs to log.jsonl in `folder`; its stderr goes there too. It finds the `token` to ask for in its environment,
    since every user of this machine can read command lines.
    """

    role: str = "environment"
    beat: str | None = None

    def __init__(self, index: int, port: int, config_file: Path, folder: Path, token: str | None = None) -> None:
        self.name = f"environment server {index}"
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._command = [
            sys.executable, "-m", "deploy.cli", "serve-env", "--config", str(config_file),
            "--host", "127.0.0.1", "--port", str(port), "--exit-with-parent",
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
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        assert self._process.stderr is not None
        self._stderr = _Stderr(self._process.stderr, self.name)

    def ready(self) -> bool:
        """It listens once it can serve, so connecting is enough, and takes no time on this machine."""
        try:
            socket.create_connection(("127.0.0.1", self._port), CONNECT_S).close()
        except OSError:
            return False
        return True

    def wait(self, seconds: float = 120.0) -> None:
        """For who has no supervisor: until it answers. Raises EnvFault with its last words if it ends instead."""
        deadline = time.monotonic() + seconds
        while not answers(f"{self.url}/healthz", 2.0):
            end = self.poll()
            if end is not None:
                raise EnvFault(f"{self.name} ended at start: {end.reason}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"{self.name} did not answer within {seconds:.0f} s; its log says what it does")
            time.sleep(POLL_S)

    def poll(self) -> End | None:
        code = self._process.poll() if self._process else 0
        if code is None:
            return None
        return endings.of_exit(code, self._stderr.last_words() if self._stderr else "it was not started", self.role)

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        wait_or_kill(process, STOP_GRACE_S)


class _Stderr(threading.Thread):
    """Reads what a child says outside its own log, such as an interpreter or a JVM that breaks, into this process's."""

    def __init__(self, stream: IO[str], name: str) -> None:
        super().__init__(name=f"stderr of {name}", daemon=True)
        self._stream = stream
        self._child = name
        self._last = "it said nothing"
        self.start()

    def run(self) -> None:
        with self._stream:
            for line in filter(None, map(str.rstrip, self._stream)):
                self._last = line
                log.warning("on stderr", child=self._child, line=line)

    def last_words(self) -> str:
        """Of a child that has ended; not waited for where a process of its own holds the stream."""
        self.join(LAST_WORDS_S)
        return self._last


class Actor:
    """One Ray actor whose `run()` is its whole life. `make` creates a fresh handle.

    A death is final for the handle: the supervisor makes a new one, never Ray (its restarts would hide the death).
    """

    def __init__(self, name: str, role: str, beat: str, make: Callable[[], Any]) -> None:
        self.name = name
        self.role = role
        self.beat: str | None = beat
        self._make = make
        self._handle: Any = None
        self._life: Any = None

    def start(self) -> None:
        self._handle = self._make()
        self._life = self._handle.run.remote()

    def ready(self) -> bool:
        return False

    def poll(self) -> End | None:
        return _end([self._life], self.role)

    def stop(self) -> None:
        _kill([self._handle] if self._handle is not None else [])
        self._handle = None


class LearnerGang:
    """The learner ranks: the first death ends all. `make(rank)` creates the handle of a rank.

    Rank 0 names the rendezvous (its node and a free port) once it has a place on the cluster; then all run.
    """

    role: str = "learner"
    beat: str | None = "learner-0"

    def __init__(self, name: str, world: int, make: Callable[[int], Any]) -> None:
        self.name = name
        self._world = world
        self._make = make
        self._handles: list[Any] = []
        self._rendezvous: Any = None
        self._lives: list[Any] = []

    def start(self) -> None:
        self._lives = []
        self._handles = [self._make(rank) for rank in range(self._world)]
        self._rendezvous = self._handles[0].rendezvous.remote()

    def ready(self) -> bool:
        return False

    def poll(self) -> End | None:
        if self._lives:
            return _end(self._lives, self.role)
        end = _end([self._rendezvous], self.role)
        if end is None or end.reason:
            return end
        self._lives = [handle.run.remote(self._rendezvous) for handle in self._handles]
        return None

    def stop(self) -> None:
        _kill(self._handles)
        self._handles = []


def _end(calls: list[Any], role: str) -> End | None:
    """None while all run, End("") when all returned, else the first failure. Raises UserError."""
    import ray
    from ray.exceptions import RayError

    done, running = ray.wait(calls, num_returns=len(calls), timeout=0)
    for call in done:
        try:
            ray.get(call, timeout=STOP_GRACE_S)
        except (RayError, GagpoError) as error:
            return endings.of_actor(error, role)
    return None if running else End("")


def _kill(handles: list[Any]) -> None:
    import ray

    for handle in handles:
        ray.kill(handle, no_restart=True)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
