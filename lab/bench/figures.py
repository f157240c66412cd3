"""The results of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Report = Callable[[str, int, int], object]
"""Progress callback: (what is measured now, parts done, parts in all)."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value, with its reference measured in the same run."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    """The reference's value in the same unit. None: no reference."""
    ratio: float | None = None
    """How many times better than the reference. Above 1 is better, whatever the unit."""
