"""Evaluations of a run: those made during training form a curve, the others are in the final table. Light.

In a run with several environments each evaluation also has the success in each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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


ENVIRONMENTS = tuple(f"success_by_env{end}" for end in ("", "_low", "_high"))
"""Keys of an evaluation in a run of several environments. Each maps the name of an environment to a number."""


def env_scores(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a text for each environment of a run with several, such as `search-gen: 55.0% [48.1%, 61.7%]`."""
    return tuple(f"{name}: {rate:.1%} [{low:.1%}, {high:.1%}]" for name, (rate, low, high) in _intervals(row).items())


def _intervals(row: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Returns mean, low and high of each environment. One is left out if a damaged row lacks any of its numbers."""
    rates, lows, highs = (row.get(key) or {} for key in ENVIRONMENTS)
    return {name: (rates[name], lows[name], highs[name]) for name in rates
            if None not in (rates[name], lows.get(name), highs.get(name))}


def envs_of(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the environments of a run with several, by name; [] for one environment."""
    return sorted({env for row in evaluations for env in _intervals(row)})


def in_env(evaluations: Sequence[Mapping[str, Any]], env: str) -> list[dict[str, Any]]:
    """Returns the evaluations that have results in `env`, with its success rate, interval and `tasks`. All other keys
    still cover all environments."""
    rows: list[dict[str, Any]] = []
    for row in evaluations:
        if interval := _intervals(row).get(env):
            values = dict(zip(("success_rate", "success_low", "success_high"), interval, strict=True))
            rows.append({**row, **values, "tasks": len(tasks_by_env(row)[env])})
    return rows


def tasks_by_env(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the success by task in each environment of a run with several; {} for one environment."""
    return {name: {task: value for task, value in row["success_by_task"].items() if task.startswith(f"{name}/")}
            for name in row.get("success_by_env") or ()}
