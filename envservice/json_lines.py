"""A file of JSON lines as a table: one object per line, one column for each key, and every value as it was written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from services.files import NOT_JSON

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS = {int: "whole numbers", bool: "true or false", float: "fractions"}
"""The types that pyarrow makes one column of fractions from."""


def table_of_lines(data: bytes) -> pa.Table:
    """Reads one object per line. pyarrow's own reader crashes on some broken files, and takes dates for numbers.

    Raises DecodeError for a line that is no object, and ArrowInvalid for a column whose values cannot stay as they are.
    """
    import pyarrow as pa

    rows = _rows(data)
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        column = pa.array(values)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"column {name!r:.40} has values of several types: {error}") from None
    except OverflowError:
        raise pa.ArrowInvalid(f"column {name!r:.40} has a whole number that does not fit into 64 bits; "
                              "write it in quotes") from None
    if "double" in str(column.type) and (mixed := _mixed(values)):
        raise pa.ArrowInvalid(f"column {name!r:.40} has {mixed}; write them as texts, or all as 4.0")
    return column


def _mixed(values: Sequence[Any]) -> str:
    """Says what a column has beside fractions at the same place of its values, or ""."""
    found: dict[tuple[str | int, ...], set[type]] = {}
    for place, kind in _kinds(values, ()):
        found.setdefault(place, set()).add(kind)
    mixed = next((kinds for kinds in found.values() if len(kinds) > 1), ())
    return " and ".join(name for kind, name in _KINDS.items() if kind in mixed)


def _kinds(value: object, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], type]]:
    """Yields the place and the type of each number in a value. All entries of a list are at the same place."""
    if isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _kinds(one, (*place, 0))
    elif isinstance(value, Mapping):
        for key, one in cast("Mapping[str, object]", value).items():
            yield from _kinds(one, (*place, key))
    elif type(value) in _KINDS:
        yield place, type(value)


def _rows(data: bytes) -> list[dict[str, Any]]:
    """Decodes one object per line. Raises DecodeError with the number of the first line that is none."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    try:
        return decoder.decode_lines(data)
    except NOT_JSON:
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                decoder.decode(line if line.strip() else b"{}")
            except NOT_JSON as error:
                raise msgspec.DecodeError(f"line {number}: {error}") from None
        raise
