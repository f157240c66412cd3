"""Labels of evaluations. Those that are made during training make a curve; others stand in the final table. Light."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Row = TypeVar("Row", bound=Mapping[str, Any])
COLD, TRAINED, MORE = "panel-cold", "panel-trained", "panel-more-cold-start"
TITLES = {
    COLD: "before RL",
    TRAINED: "after RL",
    MORE: "same minutes of more cold start",
}
_PREFIX = "step-"


def curve_label(step: int) -> str:
    """Returns the label of the evaluation after learner step `step`."""
    return f"{_PREFIX}{step:06d}"


def on_curve(label: str) -> bool:
    """Returns whether an evaluation was made during training. Those of the final table have labels of their own."""
    return re.fullmatch(f"{_PREFIX}[0-9]+", label) is not None


def curve_of(evaluations: Iterable[Row]) -> list[Row]:
    """Returns the evaluations that were made during training, by step."""
    return sorted((row for row in evaluations if on_curve(row["label"])), key=lambda row: row["step"])


def title_of(label: str) -> str:
    """Returns the title that people read in place of a label: `evaluation at step 20`, `held-out games, after RL`."""
    if on_curve(label):
        return f"evaluation at step {int(label.removeprefix(_PREFIX))}"
    return f"held-out games, {TITLES[label]}" if label in TITLES else "evaluation"
