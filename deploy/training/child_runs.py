"""Runs other `gagpo` commands as child processes: each run of a sweep or an experiment is its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from services.errors import GagpoError
from services.process.child_processes import ending_with_parent, wait_or_kill

POLL_S = 0.5
CONTINUE = "to continue: "
"""Prefix of the line in which a command that ends early says how to continue it (deploy/training/start.py)."""
STOP_GRACE_S = 60.0
"""Longest wait after SIGTERM, in seconds. A training run has to stop its samplers, Ray and Redis first."""
TAIL_LINES = 12
FAILURES_IN_A_ROW = 3
"""Number of failed runs in a row after which no other run can be expected to finish."""


class ChildFailed(GagpoError):
    """The child `name` failed. `status`: the status that the parent exits with too. `tail`: the child's last lines."""

    def __init__(self, what: str, status: int, tail: Sequence[str] = (), *, name: str = "") -> None:
        super().__init__(what)
        self.name = name
        self.status = status
        self.tail = list(tail)


class Child:
    """One command. `log`: file for its output, emptied first; if None, its output goes where ours goes."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path | None = None, out: Path | None = None,
                 leave_s: float = 0.0, secrets: Mapping[str, str] | None = None) -> None:
        """`out`: file for its stdout only. `leave_s`: seconds that the child may work on after SIGTERM, before it stops
        (supervision.leave_seconds of a run). `secrets`: variables of its environment, in addition to ours."""
        self.name = name
        self._grace_s = STOP_GRACE_S + leave_s
        self._log = log
        self._out = out
        self._arguments = arguments
        self._secrets = dict(secrets or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False
        self._started = time.monotonic()

    def start(self) -> None:
        """Starts the command and returns at once. Call it from the main thread: the child ends when that thread ends.

        The child has its own session, so that Ctrl-C reaches it only once, through us. A second signal would interrupt
        its clean-up.
        """
        self._started = time.monotonic()
        with ExitStack() as stack:
            log, out = (stack.enter_context(path.open("wb")) if path else None for path in (self._log, self._out))
            self._process = subprocess.Popen(
                ending_with_parent([sys.executable, "-m", "deploy.cli", *self._arguments]),
                stdin=subprocess.DEVNULL, stdout=out or log, stderr=log, start_new_session=True,
                env=os.environ | self._secrets)

    @property
    def seconds(self) -> float:
        """Seconds since the child's start."""
        return time.monotonic() - self._started

    def ended(self, deadline_s: float | None = None) -> bool:
        """Whether the child has succeeded. Raises ChildFailed if it failed or has run longer than `deadline_s`."""
        assert self._process is not None
        status = self._process.poll()
        if status is None and deadline_s is not None and self.seconds > deadline_s:
            self.stop()
            raise self._failed(f"ran for more than {deadline_s / 60:.0f} minutes", 1)
        if status:
            raise self._failed(f"ended with status {status}", status if status > 0 else 1)
        return status == 0

    def _failed(self, how: str, status: int) -> ChildFailed:
        where = f"; its last lines are above, all are in {self._log}" if self._log else ""
        return ChildFailed(f"{self.name} {how}{where}", status, self.tail(TAIL_LINES), name=self.name)

    def wait(self, deadline_s: float | None = None) -> None:
        """Waits until the child has succeeded. Raises the same errors as `ended`.

        A child that watches its own progress, such as `gagpo train`, needs no deadline.
        """
        while not self.ended(deadline_s):
            time.sleep(POLL_S)

    def tell_to_stop(self) -> None:
        """Sends SIGTERM, at most once, and does not wait. A second signal would interrupt the child's clean-up."""
        if self._process is not None and self._process.poll() is None and not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.terminate()

    def stop(self) -> None:
        """Sends SIGTERM, waits for the child's end, and kills it after `leave_s` and STOP_GRACE_S."""
        self.tell_to_stop()
        if self._process is None:
            return
        wait_or_kill(self._process, self._grace_s)

    def tail(self, lines: int) -> list[str]:
        """Returns the last lines of the child's log, without the one that says how to continue: its parent says so."""
        if self._log is None or not self._log.exists():
            return []
        lines_of_log = self._log.read_text(errors="replace", encoding="utf-8").strip().splitlines()
        return [line for line in lines_of_log if not line.startswith(CONTINUE)][-lines:]


def run_child(name: str, arguments: Sequence[str], *, log: Path | None = None, out: Path | None = None,
              deadline_s: float | None = None, leave_s: float = 0.0,
              secrets: Mapping[str, str] | None = None) -> None:
    """Runs a command to its end. If this process is ended, the command is stopped too. Raises ChildFailed."""
    child = Child(name, arguments, log=log, out=out, leave_s=leave_s, secrets=secrets)
    child.start()
    try:
        child.wait(deadline_s)
    finally:
        child.stop()


def failed(error: ChildFailed) -> int:
    """Prints the child's last lines and the error to stderr. Returns the status to exit with."""
    for line in error.tail:
        print(f"  {line}", file=sys.stderr)
    print(f"error: {error}", file=sys.stderr)
    return error.status
