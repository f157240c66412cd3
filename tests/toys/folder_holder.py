"""Another process that holds the folder of the run `r`, as `gagpo train` does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held_folder(runs: Path) -> Iterator[None]:
    """Holds runs/r inside the block. The process is killed at its end."""
    code = (f"from deploy.runs.folder import locked\nfrom services.config.tree import Config\nimport sys\n"
            f"with locked(Config(name='r', steps=3, runs_dir={str(runs)!r})):\n    print('held', flush=True)\n"
            "    sys.stdin.read()\n")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            yield
        finally:
            holder.kill()
