"""Measures the resources of this machine that a process may use. Respects the limits of containers and CPU sets."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

from services.errors import UserError
from services.files import FULL
from services.process.addresses import family_of

CGROUP = Path("/sys/fs/cgroup")


def cpu_count() -> float:
    """Returns the number of CPUs that this process may use, from its CPU affinity and the container's quota."""
    allowed = float(len(os.sched_getaffinity(0)))
    quota = _read(CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        allowed = min(allowed, int(quota[0]) / int(quota[1]))
    return allowed


def available_memory() -> int:
    """Returns the memory in bytes that new processes can take: what the machine, or its container, has left."""
    import psutil

    free = psutil.virtual_memory().available
    limit, used = _read(CGROUP / "memory.max"), _read(CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used) + _reclaimable()))
    return free


def _reclaimable() -> int:
    """Returns the bytes of the page cache that were not read lately. A container counts them as used, but the kernel
    frees them on demand."""
    match = re.search(r"^inactive_file (\d+)$", _read(CGROUP / "memory.stat"), re.MULTILINE)
    return int(match[1]) if match else 0


def shared_memory() -> int:
    """Returns the size of /dev/shm in bytes; 0 if there is none. Ray keeps its objects there."""
    return shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0  # noqa: S108 - not a temporary file of ours


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Returns whether a server could listen on the port now."""
    with socket.socket(family_of(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def check_writable(folder: Path, name: str, fix: str) -> None:
    """Raises UserError that begins with `name` if the folder cannot be made or written: its nearest existing ancestor
    must accept a new folder. Raises OSError for a full disk, after which a supervisor tries again."""
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".gagpo-", dir=above):
            pass
    except OSError as error:
        if error.errno in FULL:
            raise
        # The kernel's own file systems answer as if the folder itself were missing.
        why = "no folder can be made there" if error.errno == errno.ENOENT else error.strerror
        raise UserError(f"{name} cannot be written ({why}: {above})", fix) from None
