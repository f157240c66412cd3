"""The memory of this machine or container and of this process, and the number of sessions that fit into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from services.amounts import GIB
from services.config.tree import EnvSection
from services.errors import UserError

SHARE = 0.5
"""The share of the memory that sessions may use without `env.memory_gb`. The rest is for servers and other
processes."""
CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
"""Maps the controllers in a line of /proc/self/cgroup to the folder and file of the limit: version 2, then version
1."""


def session_limit(env: EnvSection, session_bytes: int, *, memory: int | None = None) -> int:
    """Returns `env.max_sessions`, or fewer if that many sessions of `session_bytes` do not fit into one server's share.

    The share is that of `sessions_bytes`. `memory` replaces this machine's bytes. Raises UserError if none fits.
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
    """Returns one server's share of `env.memory_gb`, or of SHARE of the memory without it.

    It bounds the processes of sessions and, separately, the answers that sessions record: a session records less than a
    hundredth of what its process takes.
    """
    whole = env.memory_gb and env.memory_gb * GIB
    return int((whole or SHARE * (memory_bytes() if memory is None else memory)) / env.servers)


def memory_bytes(cgroups: Path = CGROUPS, own: str | None = None) -> int:
    """Returns the memory of this machine or container in bytes. `own` replaces the text of /proc/self/cgroup."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    groups = Path("/proc/self/cgroup").read_text(encoding="utf-8") if own is None else own
    return min([machine, *_limits(cgroups, groups)])


def own_memory_bytes() -> int:
    """Returns the anonymous memory of this process in bytes. Excludes children and shared file mappings."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def _limits(cgroups: Path, own: str) -> Iterator[int]:
    """Yields the limits of this process's group and of all groups around it.

    If a container sees its host's path, only the last of these folders exists, which is the container's own.
    """
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in _CONTROLLERS:
            continue
        folder, file = _CONTROLLERS[controllers]
        root = cgroups / folder
        for group in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
            limit = group / file
            if not group.is_relative_to(root) or not limit.is_file():
                continue
            if (text := limit.read_text(encoding="utf-8").strip()).isdecimal():
                yield int(text)
