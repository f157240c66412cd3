"""An environment server of the run's own as a member: a child process on this machine."""

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
from services.process.child_processes import wait_or_kill
from services.telemetry.logs import get_logger

log = get_logger("processes")
POLL_S = 0.1
CONNECT_S = 1.0
STOP_GRACE_S = 10.0
LAST_WORDS_S = 2.0
HANDOVER_S = 10.0
"""Every worker knows the new list of servers within this time. Its sessions are then rebuilt on the other servers."""


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

    def __init__(self, index: int, port: int, config_file: Path, folder: Path, token: str | None = None, *,
                 host: str = "127.0.0.1") -> None:
        self.name = f"environment server {index}"
        self.url = f"http://{host}:{port}"
        self._address = host, port
        self._ends_at: float | None = None
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
                                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        assert self._process.stderr is not None
        self._stderr = _Stderr(self._process.stderr, self.name)

    def ready(self) -> bool:
        """It listens once it can serve, so connecting is enough, and takes no time on this machine."""
        try:
            socket.create_connection(self._address, CONNECT_S).close()
        except OSError:
            return False
        return True

    def lacks(self) -> str:
        return ""  # this machine always has a place for it

    def wait(self, seconds: float = 120.0) -> None:
        """Waits until it answers, for callers without a supervisor. Raises EnvFault with its last words if it ends."""
        deadline = time.monotonic() + seconds
        while not answers(f"{self.url}/healthz", 2.0):
            end = self.poll()
            if end is not None:
                raise EnvFault(f"{self.name} ended at start: {end.reason}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"{self.name} did not answer within {seconds:.0f} s; its log says what it does")
            time.sleep(POLL_S)

    def poll(self) -> End | None:
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            return End("")
        code = self._process.poll() if self._process else 0
        if code is None:
            return None
        return endings.of_exit(code, self._stderr.last_words() if self._stderr else "it was not started", self.role)

    def drain(self) -> None:
        """Ends once every worker has the list of servers without it."""
        self._ends_at = time.monotonic() + HANDOVER_S

    def stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        wait_or_kill(process, STOP_GRACE_S)


class _Stderr(threading.Thread):
    """Copies into this process's log what a child says outside its own, such as an interpreter or a JVM that breaks."""

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
        """Returns the last line of a child that has ended, without a long wait: its own child may hold the stream."""
        self.join(LAST_WORDS_S)
        return self._last
