"""Labels of the evaluations that are made during training, and so make a curve. Light."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Row = TypeVar("Row", bound=Mapping[str, Any])
_PREFIX = "step-"


def curve_label(step: int) -> str:
    """Returns the label of the evaluation after learner step `step`."""
    return f"{_PREFIX}{step:06d}"


def on_curve(label: str) -> bool:
    """Returns whether an evaluation was made during training. Those of the final table have labels of their own."""
    return label.startswith(_PREFIX)


def curve_of(evaluations: Iterable[Row]) -> list[Row]:
    """Returns the evaluations that were made during training, by step."""
    return sorted((row for row in evaluations if on_curve(row["label"])), key=lambda row: row["step"])
