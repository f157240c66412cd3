"""Heartbeats: every two seconds a process reports its metrics and its activity. A dead process has none after TTL_S."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from services.telemetry.catalogue import Role, Snapshot
from services.telemetry.logs import get_logger

BEAT_S = 2.0
TTL_S = 10.0
"""Seconds after which a heartbeat expires."""
NO_SERVERS = "waits for environment servers"
"""Activity of a worker that no environment server answers."""
Send = Callable[[str, Mapping[str, Any]], object]
"""Signature of RunState.beat: the name of a process and the fields of its heartbeat."""
log = get_logger("heartbeat")


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat."""

    role: Role
    version: str = ""
    """Short name of the weights held."""
    doing: str
    """The present activity of its loop, or what it waits for, in a few words."""
    since: float
    """Unix time when that activity began."""
    progress: float
    """Unix time of the last progress; 0 before the first."""
    metrics: Snapshot
    sick: tuple[str, ...] = ()
    """Only in the controller's beat: one line for each process that dies repeatedly."""
    at: float = 0.0
    """Unix time of the heartbeat itself. 0: unknown."""


def decode(beats: Mapping[str, Mapping[str, Any]]) -> dict[str, Beat]:
    """Returns the heartbeats of RunState.beats by process, sorted by name. Raises msgspec.ValidationError."""
    return {name: msgspec.convert(beats[name], Beat) for name in sorted(beats)}


def all_do(beats: Mapping[str, Mapping[str, Any]], role: Role, doing: str) -> bool:
    """Returns whether each heartbeat of a role in RunState.beats() has the activity `doing`; False if it has none."""
    activities = [beat.get("doing") for beat in beats.values() if beat.get("role") == role]
    return bool(activities) and all(activity == doing for activity in activities)


class Heartbeat:
    """The state from which a process makes its heartbeats. Thread-safe."""

    def __init__(self, name: str, role: Role) -> None:
        self.name = name
        from services.telemetry.meters import Meters

        self.meters = Meters(role)
        self._role: Role = role
        self._version = ""
        self._sick: tuple[str, ...] = ()
        self._doing, self._since, self._progress = "starting", time.time(), 0.0
        self._sending = threading.Lock()

    def doing(self, text: str) -> None:
        """Records what the loop does or waits for from now on."""
        if text != self._doing:
            self._doing, self._since = text, time.time()

    def progressed(self) -> None:
        """Records that the process has made progress."""
        self._progress = time.time()

    def sick(self, lines: Sequence[str]) -> None:
        """Records the processes that die repeatedly, one line for each."""
        self._sick = tuple(lines)

    def holds(self, version: str) -> None:
        """Records the short name of the weights that the process holds now."""
        self._version = version

    def beat(self) -> dict[str, Any]:
        """Returns the fields of the next heartbeat, for RunState.beat."""
        return msgspec.to_builtins(Beat(
            role=self._role, version=self._version, doing=self._doing, since=self._since, progress=self._progress,
            sick=self._sick,
            metrics=self.meters.snapshot(), at=time.time()))

    def send(self, send: Send) -> None:
        """Sends a heartbeat, one at a time: an older one of another thread could arrive last, and stay."""
        with self._sending:
            send(self.name, self.beat())


class Beating:
    """Sends heartbeats from a thread of its own until the block ends, for processes whose loop may be busy for long.

    `fill` is called before each beat. The first of several beats that fail is logged, and the next one follows. The
    loop itself notices a store that stays unavailable, and Prometheus notices that the series ends.
    """

    def __init__(self, heartbeat: Heartbeat, send: Send, *, fill: Callable[[], object] = lambda: None) -> None:
        self._heartbeat, self._send, self._fill = heartbeat, send, fill
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{heartbeat.name}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self._heartbeat

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(TTL_S)

    def _run(self) -> None:
        failing = False
        while True:
            try:
                self._send_beat()
                failing = False
            except Exception as error:
                if not failing:
                    log.warning("no heartbeat", worker=self._heartbeat.name, reason=str(error))
                failing = True
            if self._done.wait(BEAT_S):
                return

    def _send_beat(self) -> None:
        self._fill()
        self._heartbeat.send(self._send)
