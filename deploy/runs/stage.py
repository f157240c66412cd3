"""stage.json: the stage that a run's driver is in, for `gagpo status` on any machine that sees the folder.

The driver rewrites it every few seconds, so an old file means that the driver was killed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from services.errors import in_short
from services.files import read_json, write_whole
from services.telemetry.logs import get_logger

log = get_logger("run")

EVERY_S = 5.0
ENDED_WELL = "finished"
COPIED = "copied while it was running"
SILENT_S = 60.0
"""Seconds after which a silent driver on another machine counts as dead. Long, because a shared disk may be busy."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a driver at time `at`. Times are Unix times."""

    name: str = "starting"
    doing: str = ""
    """The current activity of the stage in one line. May be empty."""
    since: float
    """Time when the stage began."""
    at: float
    host: str
    """Where the process id `pid` counts: this_host() of the driver."""
    pid: int
    born: float
    """Start of the driver's process as _start gives it, because its process id may be reused."""
    folder: int | None = None
    """Inode of the run's folder, which a rename keeps and a copy does not have. None: an older version wrote it."""
    ended: str = ""
    """How the driver ended. Empty while it runs, and if it was killed."""

    @property
    def alive(self) -> bool:
        """Returns whether the driver still runs."""
        if self.ended:
            return False
        if self.host == this_host():
            try:
                return _start(self.pid) == self.born
            except (ProcessLookupError, FileNotFoundError, PermissionError):
                if not _of_another_user(self.pid):
                    return False
        return time.time() - self.at < SILENT_S


def this_host() -> str:
    """Returns an identity of this machine, and of this container on it: its processes have ids of their own.

    The hostname alone is not enough, because every machine may be called localhost.
    """
    words = [socket.gethostname()]
    with suppress(OSError):  # only Linux has these
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        words.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(words)


def _start(pid: int) -> float:
    """Returns when a process of this machine started: in clock ticks since boot on Linux, else as a Unix time.

    On Linux a Unix time would not identify a process: it is computed from the present clock, so it changes if somebody
    sets the clock.
    """
    if not Path("/proc/self/stat").exists():
        import psutil

        try:
            return psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            raise ProcessLookupError from None
    after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]  # a name may hold spaces and brackets
    return float(after_name.split()[19])  # field 22 of proc(5), and this begins with field 3


def _of_another_user(pid: int) -> bool:
    """Whether a process exists that this user may not touch. A /proc with the option hidepid does not show it."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def read_stage(path: Path) -> Stage | None:
    """Returns the last stage of a run, or None if its driver never wrote one. Raises Damaged.

    In a copy of an active run's folder, such as a backup, the run counts as ended: its driver works elsewhere.
    """
    try:
        stage, written, folder = read_json(path, Stage), path.stat().st_mtime, path.parent.stat().st_ino
    except FileNotFoundError:
        return None
    if stage.host != this_host():
        # The clock of another machine may be wrong. The time of the file is by the clock of the shared folder.
        return msgspec.structs.replace(stage, at=written)
    copied = stage.alive and stage.folder not in (None, folder)
    return msgspec.structs.replace(stage, ended=COPIED) if copied else stage


class StageRecord:
    """Keeps stage.json up to date from a thread until the block ends. `set` may be called at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        now = time.time()
        self._stage = Stage(since=now, at=now, host=this_host(), pid=os.getpid(),
                            born=_start(os.getpid()))
        self._lock = threading.Lock()
        self._warned = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="stage", daemon=True)

    def __enter__(self) -> StageRecord:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self._stage = msgspec.structs.replace(self._stage, ended=_ended(error))
        self._write()

    def set(self, name: str, doing: str) -> None:
        """Sets the current stage and activity. A new stage is written at once."""
        new = name != self._stage.name
        since = time.time() if new else self._stage.since
        self._stage = msgspec.structs.replace(self._stage, name=name, doing=doing, since=since)
        if new:
            self._write()

    def _beat(self) -> None:
        while not self._done.wait(EVERY_S):
            self._write()

    def _write(self) -> None:
        """Replaces the file. If that fails, as on a full disk, it stays as it is: the next call comes soon.

        Only the first failure is logged.
        """
        with self._lock:
            try:
                folder = self._path.parent.stat().st_ino  # each time: not all file systems keep it for long
                now = msgspec.structs.replace(self._stage, at=time.time(), folder=folder)
                write_whole(self._path, msgspec.json.encode(now))
            except OSError as error:
                if not self._warned:
                    log.warning("the stage cannot be written; status shows an old one", file=str(self._path),
                                reason=str(error))
                self._warned = True


def _ended(error: BaseException | None) -> str:
    if error is None:
        return ENDED_WELL
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    if isinstance(error, SystemExit):
        return f"stopped with exit status {error.code}"
    return in_short(error)
