"""Checks that the private Ray of this process lives. All actors of a run depend on it and die with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import psutil

from services.errors import DeadlineExceeded, Fault, described
from services.process.threads import started
from services.telemetry.logs import get_logger

log = get_logger("ray")
NEEDED = {"gcs_server": "GCS", "raylet": "raylet"}
"""The processes without which a cluster of one node can do nothing, by their names."""
CALL_S = 5.0
"""Deadline in seconds of a call that a dying cluster may never answer."""
LOOK_S = 0.5
"""Seconds between two looks whether the cluster lives."""


class RayLost(Fault):
    """The private Ray has died, and with it all actors of the run. The run can continue in a new one."""

    boundary = "ray"


_processes: dict[str, psutil.Process] = {}


def watch() -> None:
    """Begins to watch the private cluster that this process has just started. Its parts are children of this one."""
    _processes.update({child.name(): child for child in psutil.Process().children() if child.name() in NEEDED})


def unwatch() -> None:
    """Ends the watch, before the cluster is ended."""
    _processes.clear()


def dead_part() -> str:
    """Returns which needed process of the private cluster has died; "" if all live or the cluster is not ours."""
    return next((NEEDED[name] for name, process in _processes.items() if not _lives(process)), "")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check() -> None:
    """Raises RayLost if the private cluster has died."""
    part = dead_part()
    if part:
        raise RayLost(f"the private Ray died ({part})")


def ask(call: Callable[[], Any], seconds: float, what: str) -> Any:
    """Returns the result of an actor's call, which `call` sends. Sends it again if Ray has to create the actor again.

    Raises RayLost if the private cluster dies meanwhile, and DeadlineExceeded, which says `what`, after `seconds`.
    """
    import ray
    from ray.exceptions import RayActorError, RayError

    deadline = time.monotonic() + seconds
    sent = None
    while time.monotonic() < deadline:
        check()  # a dead cluster may leave a call without any answer, and Ray ends a process that puts a large object
        try:
            sent = sent or call()
            done, _ = ray.wait([sent], timeout=LOOK_S)
            if done:
                return ray.get(sent, timeout=CALL_S)
        except RayActorError:
            sent = None
            time.sleep(LOOK_S)
        except RayError:
            check()
            raise
    raise DeadlineExceeded(f"{what}: no answer within {seconds:g} s")


def attempt(call: Callable[[], object], what: str) -> None:
    """Makes a call that may be lost with a dead cluster. Logs why, if it fails or takes longer than CALL_S."""
    if dead_part():
        return
    try:
        started(call, what).result(CALL_S)
    except FutureTimeout:
        log.warning("Ray does not answer", asked=what)
    except Exception as error:
        log.warning("Ray failed", asked=what, reason=described(error))
