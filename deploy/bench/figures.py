"""What a benchmark returns."""

from __future__ import annotations

from dataclasses import dataclass


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
