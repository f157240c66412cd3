"""One log per run: JSON lines in log.jsonl; on stderr short lines where that is a terminal, else JSON too.

Each line names the run, the process with its role and rank, the version of the weights that the process holds (`bind`)
and, within an episode, its ticket (structlog's contextvars, which travel with the task).

Several processes may append to one file: a line is one write, so lines of different processes never mix.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import structlog

from services.files import follow_folder
from services.telemetry.overhead import counted

FORMAT = 1
Event = MutableMapping[str, Any]
Show = Callable[[Event], None]

_HIDDEN = ("event", "level", "time", "run", "process", "role", "rank", "name", "format", "exception")
"""Keys that the terminal's line does not repeat as key=value."""

_path: Path | None = None
_bound: dict[str, Any] = {}


def log_path() -> Path | None:
    """The run's log.jsonl; None before configure_logs or in a command without a run."""
    return _path


def print_event(event: Event) -> None:
    """On stderr, so that results on stdout stay clean: for people on a terminal, for machines elsewhere.

    A traceback is spared people where a file has it.
    """
    line = short_line(event) if sys.stderr.isatty() else as_json(event)
    if _path is None and sys.stderr.isatty() and "exception" in event:
        line += f"\n{event['exception']}"
    print(line, file=sys.stderr, flush=True)


def bind(**facts: Any) -> None:
    """Every later line of this process says so, of all its threads and tasks."""
    _bound.update(facts)


def configure_logs(
    folder: Path | None, *, process: str = "controller", show: Show | None = print_event, level: str = "info",
) -> None:
    """Sends this process's log to `folder`/log.jsonl (None: nowhere) and to `show` (None: stderr stays silent).

    `process` names the writer in each line, for example `rollout-1`: its role and, where it has one, its rank. What
    this process makes from now on, in the folder or elsewhere, is as open to others as the folder is.
    """
    global _path  # noqa: PLW0603 - a process has one log
    _bound.clear()
    _path = None if folder is None else folder / "log.jsonl"
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        follow_folder(folder)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _Sink(_path, _identity(folder, process), show),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Any:
    """A logger of structlog's: `log.info("step done", step=3, seconds=1.2)`. Silent until configure_logs is called."""
    if not structlog.is_configured():
        configure_logs(None, show=None)
    return structlog.get_logger(name=name)


def adopt_libraries() -> None:
    """What libraries warn of and fail with, by the standard library's logging, becomes lines of this log too."""
    logging.getLogger().addHandler(_Adopted(logging.WARNING))


class _Adopted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        get_logger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info)


@contextmanager
def life_of(process: str, folder: Path) -> Iterator[Any]:
    """Logs an actor's life to the log of the run in `folder`: its start, what it says by the logger given, its end.

    A node that does not see the folder keeps no log, rather than starting a folder of its own. What ends the block is
    logged with its traceback and goes on.
    """
    configure_logs(folder if folder.is_dir() else None, process=process, show=None)
    log = get_logger("life")
    log.info("started", host=socket.gethostname(), pid=os.getpid())
    try:
        yield log
    except Exception as error:
        log.exception("ended", fault=f"{type(error).__name__}: {error}")
        raise
    log.info("ended")


class _Sink:
    """The last processor: writes the event to both places."""

    def __init__(self, path: Path | None, identity: Event, show: Show | None) -> None:
        self.path, self.identity, self.show = path, identity, show

    @counted("logs")
    def __call__(self, _logger: object, _method: str, event: Event) -> NoReturn:
        event = {**self.identity, **_bound, **event}
        if self.path is not None:
            try:
                _append(self.path, as_json(event))
            except OSError as error:  # a full disk must not end what it should only have told of
                print(f"{self.path} cannot be written ({error.strerror}): {as_json(event)}", file=sys.stderr)
        if self.show is not None:
            self.show(event)
        raise structlog.DropEvent


def _identity(folder: Path | None, process: str) -> Event:
    role, _, rank = process.rpartition("-")
    numbered = bool(role) and rank.isdecimal()
    return {"format": FORMAT, **({} if folder is None else {"run": folder.name}), "process": process,
            "role": role if numbered else process, **({"rank": int(rank)} if numbered else {})}


def as_json(event: Event) -> str:
    """One line."""
    return json.dumps(event, default=str, ensure_ascii=False)


def short_line(event: Event) -> str:
    """`12:03:04 step done  step=3 seconds=1.2`; the level only where it is a warning or worse."""
    level = "" if event["level"] in ("info", "debug") else f"{event['level']}: "
    pairs = " ".join(f"{key}={_short(value)}" for key, value in event.items() if key not in _HIDDEN)
    return f"{event['time'][11:19]} {level}{event['event']}{'  ' + pairs if pairs else ''}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _append(path: Path, line: str) -> None:
    """One write call on a file opened for appending: the kernel keeps lines of several writers apart."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, (line + "\n").encode())
    finally:
        os.close(handle)
