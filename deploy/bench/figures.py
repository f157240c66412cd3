"""What a benchmark returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Tell = Callable[[str, int, int], object]
"""Told what is measured now, how many parts are done, and of how many."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure, beside its reference measured in the same run."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    """The reference's value in the same unit; None where there is none."""
    ratio: float | None = None
    """How many times better than the reference; above 1 is better, whatever the unit."""
