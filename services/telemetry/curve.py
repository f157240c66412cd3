"""Labels of the evaluations that are made during training, and so make a curve. Light."""

from __future__ import annotations

_PREFIX = "step-"


def curve_label(step: int) -> str:
    """Returns the label of the evaluation after learner step `step`."""
    return f"{_PREFIX}{step:06d}"


def on_curve(label: str) -> bool:
    """Returns whether an evaluation was made during training. Those of the final table have labels of their own."""
    return label.startswith(_PREFIX)
