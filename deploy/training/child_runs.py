"""Other `gagpo` commands as child processes: each run of a sweep or an experiment has a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from services.errors import GagpoError
from services.process.child_processes import end_with_parent, wait_or_kill

POLL_S = 0.5
STOP_GRACE_S = 60.0
"""A training run that is told to stop has to end its samplers, Ray and Redis first."""
TAIL_LINES = 12


class ChildFailed(GagpoError):
    """A child ended with another status than 0. The parent passes `status` on; `tail` holds the child's last lines."""

    def __init__(self, what: str, status: int, tail: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.status = status
        self.tail = list(tail)


class Child:
    """One command. `log`: a file for its output, emptied first; None: the output goes where ours goes."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path | None = None,
                 out: Path | None = None) -> None:
        """`out`: a file for its stdout alone."""
        self.name = name
        self._log = log
        self._out = out
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False
        self._started = time.monotonic()

    def start(self) -> None:
        """Starts the command and returns at once. Call it from the main thread, with which the child ends.

        The child has a session of its own, so that Ctrl-C reaches it once, through us. A second one would break off
        its cleaning up.
        """
        self._started = time.monotonic()
        with ExitStack() as stack:
            log, out = (stack.enter_context(path.open("wb")) if path else None for path in (self._log, self._out))
            self._process = subprocess.Popen([sys.executable, "-m", "deploy.cli", *self._arguments],
                                             stdin=subprocess.DEVNULL, stdout=out or log, stderr=log,
                                             start_new_session=True,
                                             preexec_fn=end_with_parent())  # noqa: PLW1509 - two system calls

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started

    def ended(self, deadline_s: float | None = None) -> bool:
        """Whether it has ended well. Raises ChildFailed if it ended otherwise, or runs longer than `deadline_s`."""
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
        return ChildFailed(f"{self.name} {how}{where}", status, self.tail(TAIL_LINES))

    def wait(self, deadline_s: float | None = None) -> None:
        """Waits until it has ended well, and raises as `ended` does. No deadline is needed for a child that watches its
        own progress, as `gagpo train` does."""
        while not self.ended(deadline_s):
            time.sleep(POLL_S)

    def tell_to_stop(self) -> None:
        """Sends SIGTERM once and does not wait: a second signal would break off its cleaning up."""
        if self._process is not None and self._process.poll() is None and not self._told:
            self._told = True
            self._process.terminate()

    def stop(self) -> None:
        """Ends it, politely first, and waits for its end."""
        self.tell_to_stop()
        if self._process is None:
            return
        wait_or_kill(self._process, STOP_GRACE_S)

    def tail(self, lines: int) -> list[str]:
        """Returns the last lines that it printed to its log."""
        if self._log is None or not self._log.exists():
            return []
        return self._log.read_text(errors="replace").strip().splitlines()[-lines:]


def run_child(name: str, arguments: Sequence[str], *, log: Path | None = None, out: Path | None = None,
              deadline_s: float | None = None) -> None:
    """Starts a command and waits for its end. Whatever ends us ends it too. Raises ChildFailed."""
    child = Child(name, arguments, log=log, out=out)
    child.start()
    try:
        child.wait(deadline_s)
    finally:
        child.stop()


def failed(error: ChildFailed) -> int:
    """Says why on stderr, after the child's last lines, and returns the status to leave with."""
    for line in error.tail:
        print(f"  {line}", file=sys.stderr)
    print(f"error: {error}", file=sys.stderr)
    return error.status
