"""Checks that the private Ray of this process lives. All actors of a run depend on it and die with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from services.errors import Fault
from services.telemetry.logs import get_logger

log = get_logger("ray")
NEEDED = {"gcs_server": "GCS", "raylet": "raylet"}
"""The processes without which a cluster of one node can do nothing, by Ray's names for them."""
CALL_S = 5.0
"""Deadline in seconds of a call that a dying cluster may never answer."""


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


def tell(call: Callable[[], object], what: str) -> None:
    """Makes a call that a dead cluster need not get. Returns within CALL_S, also if the cluster does not answer."""
    if dead_part():
        return
    thread = threading.Thread(target=call, name=what, daemon=True)
    thread.start()
    thread.join(CALL_S)
    if thread.is_alive():
        log.warning("Ray does not answer", asked=what)
