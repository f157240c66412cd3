"""The kinds of process that a run keeps alive, each as a Member of services/controller/supervise.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from deploy.launch.probe import POLL_S, answers
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.errors import DeadlineExceeded, EnvFault, Fault, UserError
from services.process.child_processes import wait_or_kill
from services.telemetry.logs import get_logger

log = get_logger("members")
ENV_READY_S = 120.0
STOP_GRACE_S = 10.0
ACTOR_READY_S = 600.0
LAST_WORDS_S = 2.0


class EnvServer:
    """One `gagpo serve-env` on this machine. It keeps its port over restarts, so clients need not be told.

    It logs to log.jsonl in `folder`; what it says on stderr besides goes there too. It finds the `token` to ask for in
    its environment, since every user of this machine can read command lines.
    """

    def __init__(self, index: int, port: int, config_file: Path, folder: Path, token: str | None = None) -> None:
        self.name = f"environment server {index}"
        self.url = f"http://127.0.0.1:{port}"
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
        """Returns once /healthz answers. Raises EnvFault with the server's last words when it ends instead."""
        self._process = subprocess.Popen(self._command, env=self._environ, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        assert self._process.stderr is not None
        self._stderr = _Stderr(self._process.stderr, self.name)
        deadline = time.monotonic() + ENV_READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EnvFault(f"{self.name} ended at start: {self._stderr.last_words()}")
            if answers(f"{self.url}/healthz", 2.0):
                return
            time.sleep(POLL_S)
        raise DeadlineExceeded(f"{self.name} did not answer within {ENV_READY_S:.0f} s; its log says what it does")

    def poll(self) -> str | None:
        code = self._process.poll() if self._process else 0
        return None if code is None else f"exit code {code}; {self._stderr.last_words() if self._stderr else ''}"

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

    def __init__(self, name: str, make: Any) -> None:
        self.name = name
        self._make = make
        self._handle: Any = None
        self._life: Any = None

    def start(self) -> None:
        self._handle = self._make()
        self._life = self._handle.run.remote()

    def poll(self) -> str | None:
        return _ended([self._life])

    def stop(self) -> None:
        _kill([self._handle] if self._handle is not None else [])
        self._handle = None


class LearnerGang:
    """The learner ranks: the first death ends all. `make(rank, rendezvous)` creates the handle of a rank."""

    def __init__(self, name: str, world: int, make: Any) -> None:
        self.name = name
        self._world = world
        self._make = make
        self._handles: list[Any] = []
        self._lives: list[Any] = []

    def start(self) -> None:
        """Rank 0 names the rendezvous (its node and a free port); then all run."""
        import ray
        from ray.exceptions import GetTimeoutError

        self._handles = [self._make(rank) for rank in range(self._world)]
        try:
            rendezvous = ray.get(self._handles[0].rendezvous.remote(), timeout=ACTOR_READY_S)
        except GetTimeoutError as error:
            raise DeadlineExceeded(f"{self.name}: no place on the cluster within {ACTOR_READY_S:.0f} s") from error
        self._lives = [handle.run.remote(rendezvous) for handle in self._handles]

    def poll(self) -> str | None:
        return _ended(self._lives)

    def stop(self) -> None:
        _kill(self._handles)
        self._handles = []


def _ended(lives: list[Any]) -> str | None:
    """None while all run, "" when all returned, else the first failure as one line.

    Raises UserError where an actor met a user's mistake, which no restart mends.
    """
    import ray
    from ray.exceptions import RayError

    done, running = ray.wait(lives, num_returns=len(lives), timeout=0)
    for life in done:
        try:
            ray.get(life, timeout=STOP_GRACE_S)
        except UserError:
            raise
        except (RayError, Fault) as error:
            # Of a dead process Ray says how it ended, and then a paragraph of guesses.
            return str(error).strip().splitlines()[-1].partition(" Some common causes")[0]
    return None if running else ""


def _kill(handles: list[Any]) -> None:
    import ray

    for handle in handles:
        ray.kill(handle, no_restart=True)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
