"""The log of a run: JSON lines in its folder. On stderr, short lines if it is a terminal, otherwise JSON too.

    log.jsonl           the driver and the processes that it starts on its machine
    logs/ADDRESS.jsonl  the run's processes on the node of a Ray cluster with this address

Each line names the run, the process with its role and rank, the version of its weights (`bind`) and, within an
episode, the ticket (through structlog's contextvars, which follow the asyncio task).

Several processes of one node may append to one file: each line is one write, so lines of different processes never
mix. NFS does not keep the appends of several nodes apart, so each node has a file of its own.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import structlog

from services.amounts import rounded
from services.files import follow_folder
from services.process.addresses import is_local

FORMAT = 1
Event = MutableMapping[str, Any]
Show = Callable[[Event], None]

_HIDDEN = ("event", "level", "time", "run", "process", "role", "rank", "name", "format", "exception")
"""Keys that the short line on a terminal does not repeat as key=value."""

NODES = "logs"
"""Folder of the logs of a cluster's nodes, in the run's folder."""

_path: Path | None = None
_failing = False
"""Whether the last line could not be written to the file."""
_bound: dict[str, Any] = {}


def log_path() -> Path | None:
    """Returns the file that this process logs to. None before configure_logs, or in a command without a run."""
    return _path


def log_fails() -> bool:
    """Returns whether the last line of this process is missing in its log, because the file cannot be written."""
    return _failing


def print_event(event: Event) -> None:
    """Prints an event on stderr, so that stdout holds only results: for people on a terminal, otherwise as JSON.

    A terminal does not get the traceback if the log file has it.
    """
    line = short_line(event) if sys.stderr.isatty() else as_json(event)
    if _path is None and sys.stderr.isatty() and "exception" in event:
        line += f"\n{event['exception']}"
    say(line)


def say(line: str) -> None:
    """Prints a line on stderr. A full disk behind it, or a terminal or reader that is gone, ends no process."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def bind(**facts: Any) -> None:
    """Adds `facts` to every later line of this process, from all its threads and tasks."""
    _bound.update(facts)


def configure_logs(
    folder: Path | None, *, process: str = "controller", show: Show | None = print_event, node: str = "localhost",
) -> None:
    """Sends this process's log to a file in the run's `folder` (None: to no file) and to `show` (None: not to stderr).

    `process` names the writer in each line: its role and rank, for example `rollout-1`. `node` is the address of this
    machine in the run's cluster, which names the file; a local address stands for the driver's machine. Files that this
    process makes from now on can be read by the same users as the folder.
    """
    global _path, _failing  # noqa: PLW0603 - a process has one log
    _bound.clear()
    _failing = False
    _path = None if folder is None else folder / ("log.jsonl" if is_local(node) else f"{NODES}/{node}.jsonl")
    if folder is not None and _path is not None and folder.is_dir():  # an absent one gets its lines later
        follow_folder(folder)
        _path.parent.mkdir(exist_ok=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _Sink(_path, _identity(folder, process), show),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Any:
    """Returns a structlog logger: `log.info("step done", step=3, seconds=1.2)`. Silent before configure_logs."""
    if not structlog.is_configured():
        configure_logs(None, show=None)
    return structlog.get_logger(name=name)


def adopt_libraries() -> None:
    """Copies warnings and errors that libraries report through the standard logging module into this log."""
    logging.getLogger().addHandler(_Adopted(logging.WARNING))


class _Adopted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)
        except Exception:  # values that do not fit its text, or a level of its own: the library continues
            self.handleError(record)


@contextmanager
def life_of(process: str, folder: Path, *, node: str) -> Iterator[Any]:
    """Logs the start and the end of an actor on `node` to the log of the run in `folder`. Yields a logger for the lines
    in between.

    A node that does not see the folder keeps no log, rather than making a folder of its own. An exception that ends
    the block is logged with its traceback and raised again.
    """
    configure_logs(folder if folder.is_dir() else None, process=process, show=None, node=node)
    log = get_logger("life")
    log.info("started", host=socket.gethostname(), pid=os.getpid())
    try:
        yield log
    except Exception as error:
        log.exception("ended", fault=f"{type(error).__name__}: {error}")
        raise
    log.info("ended")


class _Sink:
    """The last structlog processor: writes the event to the file and to `show`."""

    def __init__(self, path: Path | None, identity: Event, show: Show | None) -> None:
        self.path, self.identity, self.show = path, identity, show

    def __call__(self, _logger: object, _method: str, event: Event) -> NoReturn:
        event = {**self.identity, **_bound, **event}
        if self.path is not None:
            self._write(self.path, event)
        if self.show is not None:
            self.show(event)
        raise structlog.DropEvent

    def _write(self, path: Path, event: Event) -> None:
        """Appends the event. If the disk is full it is lost, which stderr shows once, and the process continues."""
        global _failing  # noqa: PLW0603 - a process has one log
        try:
            _append(path, as_json(event))
        except OSError as error:
            if not _failing:
                say(f"{path} cannot be written ({error.strerror}), so lines are lost: {short_line(event)}")
            _failing = True
        else:
            _failing = False


def _identity(folder: Path | None, process: str) -> Event:
    role, _, rank = process.rpartition("-")
    numbered = bool(role) and rank.isdecimal()
    return {"format": FORMAT, **({} if folder is None else {"run": folder.name}), "process": process,
            "role": role if numbered else process, **({"rank": int(rank)} if numbered else {})}


def as_json(event: Event) -> str:
    """Returns the event as one line of JSON."""
    return json.dumps(event, default=str, ensure_ascii=False)


def short_line(event: Event) -> str:
    """Returns the event as `12:03:04 step done  step=3 seconds=1.2`, with the level if it is a warning or worse."""
    level = "" if event["level"] in ("info", "debug") else f"{event['level']}: "
    pairs = " ".join(f"{key}={_short(value)}" for key, value in event.items() if key not in _HIDDEN)
    return f"{event['time'][11:19]} {level}{event['event']}{'  ' + pairs if pairs else ''}"


def _short(value: object) -> str:
    return rounded(value, 4) if isinstance(value, float) else str(value)


def _append(path: Path, line: str) -> None:
    """Appends a line in one write call, so that the kernel keeps the lines of several writers apart.

    If a full disk took only a part of a line, the next line of any writer begins with a newline. Raises OSError, also
    for a line of which the disk took a part.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        ends_line = not size or os.pread(handle, 1, size - 1) == b"\n"
        text = line + "\n" if ends_line else f"\n{line}\n"
        data = text.encode(errors="replace")  # half of a surrogate pair is no UTF-8
        if os.write(handle, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)
