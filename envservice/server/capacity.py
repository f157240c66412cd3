"""How much a server may hold: the memory there is, what this process takes of it, and so the number of sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from services.config.tree import EnvSection
from services.errors import UserError

GIB = 1024**3
SHARE = 0.5
"""Of the memory, for sessions; the rest is for the server and for all else."""
CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
"""A line of /proc/self/cgroup to the folder and the file that hold the limit: version 2, version 1."""


def session_limit(env: EnvSection, session_bytes: int, *, memory: int | None = None) -> int:
    """`env.max_sessions`, or as many sessions of `session_bytes` as fit into one server's share of `env.memory_gb`.

    `memory`: bytes in the place of what this machine has. Raises UserError where not even one fits.
    """
    if not session_bytes:
        return env.max_sessions
    share = sessions_bytes(env, memory=memory)
    fitting = share // session_bytes
    if fitting < 1:
        raise UserError(
            f"a session of {env.name} takes {session_bytes / GIB:.2f} GiB, and each server has "
            f"{share / GIB:.2f}", "raise env.memory_gb or the container's limit, or lower env.servers")
    return min(env.max_sessions, fitting)


def sessions_bytes(env: EnvSection, *, memory: int | None = None) -> int:
    """One server's share of `env.memory_gb`: for its sessions' processes where they have any, and for what all of its
    sessions record. The two are not added up: what a session records is less than a hundredth of its process."""
    whole = env.memory_gb and env.memory_gb * GIB
    return int((whole or SHARE * (memory_bytes() if memory is None else memory)) / env.servers)


def memory_bytes(cgroups: Path = CGROUPS, own: str | None = None) -> int:
    """What this machine has, or the container or service that this process is in. `own`: as /proc/self/cgroup."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    groups = Path("/proc/self/cgroup").read_text() if own is None else own
    return min([machine, *_limits(cgroups, groups)])


def own_memory_bytes() -> int:
    """Of this process alone: not of its children, nor what is mapped from files, which processes share."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def _limits(cgroups: Path, own: str) -> Iterator[int]:
    """Of the group that the process is in and of those around it. Where a container sees a path that is its host's,
    none of the folders is there but the last, which is the container's own."""
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in _CONTROLLERS:
            continue
        folder, file = _CONTROLLERS[controllers]
        root = cgroups / folder
        for group in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
            limit = group / file
            if group.is_relative_to(root) and limit.is_file() and (text := limit.read_text().strip()).isdecimal():
                yield int(text)
