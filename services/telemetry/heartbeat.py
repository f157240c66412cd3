"""What a process says about itself every two seconds: its metrics, and what it waits for. Expires with its sender."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from services.telemetry.logs import get_logger
from services.telemetry.meters import Meters, Snapshot
from services.telemetry.names import Role
from services.telemetry.overhead import counted, spent

BEAT_S = 2.0
TTL_S = 10.0
Send = Callable[[str, Mapping[str, Any]], object]
"""Store.beat: a name, and what it says."""
log = get_logger("heartbeat")


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat."""

    role: Role
    version: str = ""
    """Short name of the weights held."""
    doing: str
    """What its loop does or waits for, in a few words."""
    since: float
    """Unix time at which it began to."""
    progress: float
    """Unix time of the last progress; 0 before the first."""
    metrics: Snapshot
    cost: dict[str, float] = {}
    """services/telemetry/overhead.py: CPU seconds of the process, and of being watched."""
    sick: tuple[str, ...] = ()
    """The controller's: one line for each process that dies again and again."""
    at: float = 0.0
    """Unix time of the heartbeat itself; 0: not said."""


def decode(beats: Mapping[str, Mapping[str, Any]]) -> dict[str, Beat]:
    """What Store.beats returns, by worker, in order of their names. Raises msgspec.ValidationError."""
    return {name: msgspec.convert(beats[name], Beat) for name in sorted(beats)}


class Pulse:
    """The state behind a process's heartbeats. Thread-safe."""

    def __init__(self, name: str, role: Role) -> None:
        self.name = name
        self.meters = Meters(role)
        self._role: Role = role
        self._version = ""
        self._sick: tuple[str, ...] = ()
        self._doing, self._since, self._progress = "starting", time.time(), 0.0

    def doing(self, text: str) -> None:
        """The loop does or waits for `text` from now on."""
        if text != self._doing:
            self._doing, self._since = text, time.time()

    def progressed(self) -> None:
        """Something got done."""
        self._progress = time.time()

    def sick(self, lines: Sequence[str]) -> None:
        """The processes that die again and again, a line for each."""
        self._sick = tuple(lines)

    def holds(self, version: str) -> None:
        """The weights that are held now."""
        self._version = version

    @counted("metrics")
    def beat(self) -> dict[str, Any]:
        """For Store.beat."""
        return msgspec.to_builtins(Beat(
            role=self._role, version=self._version, doing=self._doing, since=self._since, progress=self._progress,
            sick=self._sick,
            metrics=self.meters.snapshot(), cost=spent(), at=time.time()))


class Beating:
    """Sends a pulse from a thread of its own while the block goes on, for processes whose loop may be busy for long.

    `fill` is called before each beat. A beat that fails is told and followed by the next: who leads the loop finds a
    store that stays away by itself, and Prometheus sees the series go.
    """

    def __init__(self, pulse: Pulse, send: Send, *, fill: Callable[[], object] = lambda: None) -> None:
        self._pulse, self._send, self._fill = pulse, send, fill
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{pulse.name}", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self._pulse

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(TTL_S)

    def _run(self) -> None:
        while True:
            try:
                self._tell()
            except Exception as error:
                log.warning("no heartbeat", worker=self._pulse.name, reason=str(error))
            if self._done.wait(BEAT_S):
                return

    @counted("metrics")
    def _tell(self) -> None:
        self._fill()
        self._send(self._pulse.name, self._pulse.beat())
