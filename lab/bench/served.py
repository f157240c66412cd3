"""Starts environment servers for benchmarks."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.config.secrets import ENV_TOKEN_VARIABLE
from services.errors import UserError
from services.process.child_processes import wait_or_kill

STOP_S = 30.0
_READY = re.compile(r"at most ([\d,]+) sessions?, on (\S+)")


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready for requests."""

    pid: int
    url: str
    sessions: int
    """Number of sessions that it can hold."""


@contextlib.contextmanager
def served(arguments: Sequence[str], *, without: Sequence[str] = ()) -> Iterator[Served]:
    """Runs `gagpo serve-env` with `arguments` on a free port, without the environment variables in `without`.

    Its log does not mix with the bench's lines. Raises UserError if it ends before it is ready; it has printed why.
    """
    environ = {name: value for name, value in os.environ.items() if name not in (*without, ENV_TOKEN_VARIABLE)}
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        command = [sys.executable, "-m", "deploy.cli", "serve-env", "--port", "0",
                   "--exit-with-parent", str(os.getpid()), "--run-folder", folder, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", errors="replace",
                              env=environ) as process:
            try:
                assert process.stdout is not None
                ready = _READY.search(process.stdout.readline())
                if ready is None:
                    raise UserError("an environment server ended at its start", "see its message above")
                yield Served(pid=process.pid, url=ready[2], sessions=int(ready[1].replace(",", "")))
            finally:
                process.terminate()
                wait_or_kill(process, STOP_S)
