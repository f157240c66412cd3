"""Describes how a process ended, in one line for people. Imports Ray only if the error came from Ray."""

from __future__ import annotations

import re
import signal

from services.controller.member import End
from services.errors import UserError, described

MEMORY_KEYS = {"rollout": "rollout.kv_cache_gb", "learner": "learner.token_budget", "environment": "env.memory_gb"}
"""The config key that lowers the memory of each role."""
_FULL = "running low on memory"
_SIZES = re.compile(r"was (\S+) used / (\S+) limit")
_BIGGEST = re.compile(r"memory users:.*?\n(\d+)\s+([\d.]+)\s+([^\n]+)", re.DOTALL)


def of_exit(code: int, last_words: str, role: str) -> End:
    """Returns the end of a child process with this exit code. A negative code is a signal's number."""
    if code >= 0:
        return End(f"exit code {code}; {last_words}")
    killer = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        killer += f", as the kernel does when memory is short: {MEMORY_KEYS[role]} lowers its memory"
    return End(f"killed by {killer}; {last_words}", killed=True)


def of_actor(error: Exception, role: str) -> End:
    """Returns the end of a Ray actor, given the exception that its call raised. Raises the exception if a UserError."""
    from ray.exceptions import RayTaskError

    if isinstance(error, UserError):
        raise error
    text = str(error).strip()
    if _FULL in text:
        return End(_for_want_of_memory(text, role), killed=True)
    if isinstance(error, RayTaskError) or not type(error).__module__.startswith("ray."):
        return End(text.splitlines()[-1] if text else described(error))
    # Ray's message about a dead process says how it ended, and then adds a paragraph of possible causes.
    return End(text.splitlines()[-1].partition(" Some common causes")[0], killed=True)


def _for_want_of_memory(text: str, role: str) -> str:
    sizes, biggest = _SIZES.search(text), _BIGGEST.search(text)
    return ("killed by Ray because its machine ran out of memory"
            + (f" ({sizes[1]} of {sizes[2]} used)" if sizes else "")
            + (f"; most is held by process {biggest[1]} with {biggest[2]} GB: {_short(biggest[3])}" if biggest else "")
            + f"; {MEMORY_KEYS[role]} lowers its memory")


def _short(command: str) -> str:
    return command if len(command) <= 60 else command[:57] + "..."
