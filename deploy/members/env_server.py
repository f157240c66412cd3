"""The run's own environment server as a member: a child process on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import httpx

from deploy.members import endings
from services.config.secrets import ENV_TOKEN_VARIABLE
from services.controller.member import End
from services.errors import DeadlineExceeded, EnvFault
from services.http.bounded import get
from services.process.addresses import host_port
from services.process.child_processes import wait_or_kill
from services.telemetry.logs import get_logger

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

    It logs to the run's `folder`, its stderr included. It gets its `token` by an environment variable, because every
    user of this machine can read command lines.
    """

    role: str = "environment"
    beat: str | None = None

    def __init__(self, index: int, port: int, config_file: Path, folder: Path, token: str | None = None, *,
                 host: str = "127.0.0.1") -> None:
        self.name = f"environment server {index}"
        self.url = f"http://{host_port(host, port)}"
        self._address = host, port
        self._ends_at: float | None = None
        self._told = False
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
            if leaves and self._process is not None and not self._told:
                self._told = True
                self._process.terminate()  # and a later poll finds its end: the controller does not wait for it
            return None
        if leaves:
            return End("")
        return endings.of_exit(code, self._stderr.last_words() if self._stderr else "it was not started", self.role)

    def drain(self) -> None:
        """Ends the server once every worker has a list of servers without it."""
        self._ends_at = time.monotonic() + HANDOVER_S

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        wait_or_kill(process, STOP_GRACE_S)


class _Stderr(threading.Thread):
    """Copies a child's stderr into this process's log, such as the last lines of an interpreter or JVM that crashes."""

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
        """Returns the last line of a child that has ended. Waits briefly: the child's own child may hold the stream."""
        self.join(LAST_WORDS_S)
        return self._last
