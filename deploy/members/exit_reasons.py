"""Describes how a process ended, in one line for people. Imports Ray only to describe the end of an actor."""

from __future__ import annotations

import os
import re
import signal
from typing import NamedTuple

from services.controller.member import End
from services.errors import UserError, described
from services.process.addresses import is_local

MEMORY_KEYS = {"rollout": "rollout.kv_cache_gb", "learner": "learner.token_budget", "environment": "env.memory_gb"}
"""The config key that lowers the memory of each role."""
_FULL = "running low on memory"
_SIZES = re.compile(r"was (\S+) used / (\S+) limit")
_LARGEST = re.compile(r"memory users:.*?\n(\d+)\s+([\d.]+)\s+([^\n]+)", re.DOTALL)
_NODE = re.compile(r"\(IP: ([^,\s]+)")
_WORKER = re.compile(r"\bpid=(\d+), actual memory used=")
"""One of the workers in Ray's list of those that it could have killed on that machine."""


def describe_exit(code: int, last_words: str, role: str) -> End:
    """Returns the end of a child process with this exit code. -N: it was killed by signal N."""
    if code >= 0:
        return End(f"exit code {code}; {last_words}")
    killer = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        killer += f", as the kernel does when memory is short: {MEMORY_KEYS[role]} lowers its memory"
    return End(f"killed by {killer}; {last_words}", killed=True)


def describe_actor_exit(error: Exception, role: str) -> End:
    """Returns the end of a Ray actor, given the exception that its call raised. A UserError is raised again."""
    from ray.exceptions import RayTaskError

    if isinstance(error, UserError):
        raise error
    text = str(error).strip()
    if _FULL in text:
        return End(_out_of_memory(text, role), killed=True)
    if isinstance(error, RayTaskError) or not type(error).__module__.startswith("ray."):
        return End(text.splitlines()[-1] if text else described(error))
    # Ray's message about a dead process says how it ended, and then adds a paragraph of possible causes.
    return End(text.splitlines()[-1].partition(" Some common causes")[0], killed=True)


def _out_of_memory(text: str, role: str) -> str:
    sizes, largest = _SIZES.search(text), _LARGEST.search(text)
    owner = _owner(int(largest[1]), text) if largest else _KILLED
    held = f"; most is held by process {largest[1]}{owner.says} with {largest[2]} GB: {_short(largest[3])}" \
        if largest else ""
    return ("killed by Ray because its machine ran out of memory"
            + (f" ({sizes[1]} of {sizes[2]} used)" if sizes else "") + held
            + (f"; {MEMORY_KEYS[role]} lowers its memory" if owner.ours else "; free that memory first"))


class _Owner(NamedTuple):
    """Whether a process belongs to this run, and the words that say so after its number."""

    ours: bool
    says: str


_KILLED = _Owner(True, "")


def _owner(process: int, text: str) -> _Owner:
    """Returns whose process it is. `text`: Ray's message, which lists its own workers.

    All workers of a private Ray belong to this run. Children of workers, such as engines, are not in the list. They end
    with the worker that was killed.
    """
    node = _NODE.search(text)
    private = node is not None and is_local(node[1])
    if str(process) in _WORKER.findall(text):
        return _Owner(True, " of this run" if private else ", a worker of this Ray cluster,")
    if not private:
        return _Owner(False, f" of {node[1] if node else 'that machine'}, no worker of this Ray cluster,")
    import psutil

    try:
        family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    except psutil.NoSuchProcess:  # one ended while it was looked at
        family = {os.getpid()}
    if process in family:
        return _Owner(True, " of this run")
    if not psutil.pid_exists(process):
        return _Owner(True, ", which has ended,")
    return _Owner(False, ", which is not of this run,")


def _short(command: str) -> str:
    return command if len(command) <= 60 else command[:57] + "..."
