"""Files of logged groups: one JSON document, or a group or an episode in each line. A row of parquet counts as a line.

Episodes in lines are what `gagpo serve-agent --out FILE` records. The episodes of a task are a group.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep, json_mistake, parse_group
from services.errors import UserError
from services.files import JSON_BYTES, Damaged, open_plain, without_mark
from services.parquet_files import read_rows
from services.process.packages import naming_extras

Line = TypeVar("Line")
LINES_BYTES = 256 << 20
"""Size of the largest file of lines that is read, in bytes. A learner step of 1,000 groups has about 100 MB."""
_AGENTS_FIX = "give a file of gagpo serve-agent --out"


def read_groups(name: str) -> list[LoggedGroup]:
    """Returns the groups in a file (`-`: standard input). A JSON document over several lines is one group.

    Raises UserError that names the file and the line of the mistake.
    """
    called = _called(name)
    with opened(name) as stream:
        lines = numbered(stream)
        first = next(lines, None)
        if first is None:
            raise UserError(f"{called} is empty", "see gagpo credit --help for the form")
        if not _is_document(first[1]):
            return [_document([first, *lines], called)]
        return [parse_group(line, f"{called} line {number}: ") for number, line in chain([first], lines)]


def _document(lines: list[tuple[int, bytes]], called: str) -> LoggedGroup:
    """Returns the group of a JSON document over several lines, each with its number. Raises UserError."""
    text = b"".join(line for _, line in lines)
    try:
        return parse_group(text, f"{called}: ")
    except UserError as error:
        what = error.what.removeprefix(f"{called}: ")
        if (place := re.search(r"\(byte (\d+)\)$", what)) is None:
            raise
        before = text[:int(place[1])]
        number, start = lines[before.count(b"\n")][0], before.rfind(b"\n") + 1
        raise UserError(f"{called} line {number}: {what[:place.start()]}(byte {len(before) - start})",
                        error.fix) from None


def _called(name: str) -> str:
    """Returns what messages call a file."""
    return "standard input" if name == "-" else name


@contextmanager
def opened(name: str) -> Generator[BinaryIO]:
    """Opens a plain file, or standard input for `-`, in binary mode. Raises UserError if it cannot be read.

    A UserError about its contents names the file.
    """
    called = _called(name)
    with ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if name == "-" else stack.enter_context(open_plain(name))
        except Damaged:
            raise UserError(f"{name} is not a plain file", "give one, or - for standard input") from None
        except OSError as error:
            raise UserError(f"cannot read {name}: {error.strerror}",
                            "give a JSON file, or - for standard input") from None
        try:
            yield _unpacked(stack, stream, name)
        except UserError as error:
            what = error.what if error.what.startswith(called) else f"{called}: {error.what}"
            raise UserError(what, error.fix) from error


def _unpacked(stack: ExitStack, stream: BinaryIO, name: str) -> BinaryIO:
    """Returns the stream, or the lines that a gzip or parquet file holds.

    Raises UserError for a parquet file that cannot be read, or comes through a pipe.
    """
    begin = cast("io.BufferedReader", stream).peek(4)[:4] if hasattr(stream, "peek") else b""
    if begin == b"PAR1":
        if name == "-":
            raise UserError("it is a parquet file, which is not read from a pipe", "give the file's name")
        return io.BytesIO(b"".join(_parquet_lines(Path(name))))
    return cast("BinaryIO", stack.enter_context(gzip.open(stream))) if begin[:2] == b"\x1f\x8b" else stream


def _parquet_lines(path: Path) -> Iterator[bytes]:
    """Yields each row as a line of JSON. Raises UserError if the file is damaged or has more than LINES_BYTES, or if
    pyarrow is not installed."""
    total = 0
    with naming_extras():
        try:
            for row in read_rows(path, limit=LINES_BYTES):
                line = msgspec.json.encode(_without_nulls(row)) + b"\n"
                total += len(line)
                if total > LINES_BYTES:
                    raise UserError(f"its rows have more than {LINES_BYTES >> 20} MiB as JSON",
                                    "give the groups of one learner step at a time")
                yield line
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"its parquet cannot be read ({error})", "write it again") from None


def _without_nulls(value: object) -> object:
    """Returns a value without the null fields of its mappings. Parquet fills in the fields of other rows with nulls."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {name: _without_nulls(part) for name, part in fields.items() if part is not None}
    return [_without_nulls(part) for part in cast("list[object]", value)] if isinstance(value, list) else value


def numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the non-empty lines with their numbers, from 1.

    Raises UserError for a line above 64 MiB, or for more than 256 MiB in all, so that memory stays bounded, and for
    UTF-16, which Windows writes. A byte order mark before UTF-8 is removed.
    """
    total = 0
    for number in range(1, sys.maxsize):
        try:
            line = stream.readline(JSON_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"after line {number - 1}: the gzip file is damaged ({error})", "copy it again") from None
        if not line:
            return
        total += len(line)
        if len(line) > JSON_BYTES:
            raise UserError(f"line {number} has more than {JSON_BYTES >> 20} MiB", "give smaller groups")
        if total > LINES_BYTES:
            raise UserError(f"line {number}: the input has more than {LINES_BYTES >> 20} MiB",
                            "give the groups of one learner step at a time")
        if number == 1:
            line = without_mark(line, "it")
        if line.strip():
            yield number, line


def decode_line(number: int, line: bytes, kind: type[Line], fix: str) -> Line:
    """Returns a line of JSON as a `kind`. Raises UserError that names the line and the wrong field."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"line {number}: {json_mistake(error, line)}", fix) from None


def _is_document(line: bytes) -> bool:
    """Whether a line is a JSON document, or one that is nested too deeply, which fails later with its own message."""
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    except RecursionError:
        return True
    return True


class AgentLine(msgspec.Struct, kw_only=True):
    """The fields of a recorded episode that are read."""

    task: str
    steps: list[LoggedStep]
    final_state: str | None = None


def read_agents(name: str) -> list[LoggedGroup]:
    """Returns the groups of a file of `gagpo serve-agent --out`, in the order of their first episodes.

    Without an environment a client need not name the task; such episodes are grouped by their first state. Episodes
    without a call are left out. Raises UserError that names the first wrong line.
    """
    groups: dict[str, list[LoggedEpisode]] = {}
    with opened(name) as stream:
        for number, line in numbered(stream):
            episode = decode_line(number, line, AgentLine, _AGENTS_FIX)
            if episode.steps:
                groups.setdefault(_agents_group(number, episode), []).append(
                    LoggedEpisode(steps=episode.steps, final_state=episode.final_state))
        if not groups:
            raise UserError("it has no episode with a call", _AGENTS_FIX)
    return [LoggedGroup(id=task, episodes=episodes) for task, episodes in groups.items()]


def _agents_group(number: int, episode: AgentLine) -> str:
    if not (key := episode.task or episode.steps[0].state).strip():
        raise UserError(f"line {number}: its group is unknown: it has neither a task nor a first state",
                        "name the task in POST /episodes")
    return key
