"""Checks that the private Ray of this process lives. All actors of a run depend on it and die with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from services.errors import DeadlineExceeded, Fault
from services.telemetry.logs import get_logger

log = get_logger("ray")
NEEDED = {"gcs_server": "GCS", "raylet": "raylet"}
"""The processes without which a cluster of one node can do nothing, by Ray's names for them."""
CALL_S = 5.0
"""Deadline in seconds of a call that a dying cluster may never answer."""
LOOK_S = 0.5
"""Seconds between two looks whether the cluster lives."""


class RayLost(Fault):
    """The private Ray has died, and with it all actors of the run. The run can continue in a new one."""

    boundary = "ray"


def dead_part() -> str:
    """Returns which needed process of the private cluster has died; "" if all live or the cluster is not ours."""
    from ray._private import worker  # Ray has no public name for the processes that it started

    node = worker._global_node  # pyright: ignore[reportPrivateUsage]
    dead = node.dead_processes() if node is not None else []
    return next((NEEDED[kind] for kind, _ in dead if kind in NEEDED), "")


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


def tell(call: Callable[[], object], what: str) -> None:
    """Makes a call that a dead cluster need not get. Returns within CALL_S, also if the cluster does not answer."""
    if dead_part():
        return
    thread = threading.Thread(target=call, name=what, daemon=True)
    thread.start()
    thread.join(CALL_S)
    if thread.is_alive():
        log.warning("Ray does not answer", asked=what)
