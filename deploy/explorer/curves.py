"""Curves as numbers for an SVG: the page draws lines, the script reads values under the pointer. No HTTP, no markup."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deploy.report.figures import CURVES_TITLE, FIGURES, Subplot, env_figures, moving_average
from deploy.runs.comparison import by_kind
from services.amounts import number_of, rounded
from services.telemetry.evaluation_environments import envs_of, in_env
from services.telemetry.evaluation_labels import curve_of

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 184, 44, 412, 8, 150
"""Size of the drawing, and the sides of its axes."""
MOST_POINTS = 600
"""Most values of a line besides its last. A longer line has every n-th one, or the page of a long run has megabytes."""
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    """One key of one run."""

    run: int
    key: int
    name: str
    steps: list[int]
    values: list[float]
    bounds: Sequence[tuple[float, float]] = ()
    """95% interval of each value, if it has one. Then single values are drawn, and no moving average."""
    thin: str = ""
    """Points of the values. `thick` has those of the moving average."""
    thick: str = ""
    band: str = ""
    """Polygon of the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure with the lines of all runs."""

    subplot: Subplot
    lines: list[CurveLine]
    ticks: list[tuple[float, str]]
    """Ticks of the y axis: (y, label)."""
    marks: list[tuple[float, str]]
    """Ticks of the x axis: (x, label)."""

    @property
    def data(self) -> list[dict[str, Any]]:
        """Returns the data for the page's script."""
        return [{"name": line.name, "run": line.run, "steps": line.steps, "values": line.values}
                for line in self.lines]


def training_charts(names: Sequence[str], metrics: Sequence[Rows]) -> list[Chart]:
    """Returns the curves of the report, for all runs that have them."""
    charts: list[Chart] = []
    # A step may have groups of some environments only, so no single row names all.
    figures = env_figures(set[str]().union(*(row for rows in metrics for row in rows))) | FIGURES
    for subplot in (subplot for subplots in figures.values() for subplot in subplots):
        several = len(subplot.curves) > 1
        lines = [CurveLine(run=i, key=j, name=_label(names, i, title if several or len(names) == 1 else ""),
                           steps=[row["step"] for row in finite], values=[row[key] for row in finite])
                 for i, rows in enumerate(metrics) for j, (key, title) in enumerate(subplot.curves.items())
                 if (finite := [row for row in rows if row.get(key) is not None])]
        if lines:
            charts.append(_chart(subplot, lines))
    return charts


def evaluation_charts(names: Sequence[str], evaluations: Sequence[Rows]) -> list[Chart]:
    """Returns the chart of all evaluations, then one for each environment of runs with several; [] before the first
    evaluation."""
    envs = dict.fromkeys(env for rows in evaluations for env in envs_of(rows))
    charts = [evaluation_chart(names, evaluations), *(
        evaluation_chart(names, [in_env(rows, env) for rows in evaluations], f"{CURVES_TITLE}, in {env}")
        for env in envs)]
    return [chart for chart in charts if chart is not None]


def evaluation_chart(names: Sequence[str], evaluations: Sequence[Rows], title: str = CURVES_TITLE) -> Chart | None:
    """Returns the success of the curve's evaluations with intervals, or None before the first. Each split and
    temperature has a line: a run may continue with others."""
    lines = [CurveLine(run=i, key=j, name=_label(names, i, f"{split} T={temperature:g}, "
                                                           f"{number_of(same[-1]['tasks'], 'game')}"),
                       steps=[row["step"] for row in same], values=[row["success_rate"] for row in same],
                       bounds=[(row["success_low"], row["success_high"]) for row in same])
             for i, rows in enumerate(evaluations)
             for j, ((split, temperature), same) in enumerate(by_kind(curve_of(rows)).items())]
    return _chart(Subplot(title=title, curves={}, percent=True), lines) if lines else None


def _label(names: Sequence[str], i: int, title: str) -> str:
    return title if len(names) == 1 else f"{names[i]} {title}".strip()


def _chart(subplot: Subplot, lines: Sequence[CurveLine]) -> Chart:
    values = [value for line in lines for value in [*line.values, *(edge for pair in line.bounds for edge in pair)]]
    scale = math.log10 if subplot.log and min(values) > 0 else float
    low, high = _range(list(map(scale, values)), from_zero=scale is float)
    first, last = min(min(line.steps) for line in lines), max(max(line.steps) for line in lines)

    def x_of(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * (step - first) / max(last - first, 1)

    def y_of(scaled: float) -> float:
        return TOP + (BOTTOM - TOP) * (1 - (scaled - low) / (high - low))

    def at(step: float, value: float) -> str:
        return f"{x_of(step):.1f},{y_of(scale(value)):.1f}"

    heights = (low, (low + high) / 2, high)
    show = (lambda value: f"{100 * value:g}%") if subplot.percent else rounded
    return Chart(
        subplot=subplot, lines=[_drawn(line, at) for line in lines],
        ticks=[(y_of(height), show(height if scale is float else 10**height)) for height in heights],
        marks=[(x_of(step), str(step)) for step in sorted({first, (first + last) // 2, last})])


def _drawn(line: CurveLine, at: Callable[[float, float], str]) -> CurveLine:
    """Returns a line with its points."""
    mean = line.values if line.bounds else moving_average(line.values)
    kept = _kept(len(line.steps))
    steps, values = [line.steps[k] for k in kept], [line.values[k] for k in kept]
    bounds = [line.bounds[k] for k in kept] if line.bounds else []
    lower, upper = (_line([at(step, pair[edge]) for step, pair in zip(steps, bounds, strict=False)]).split()
                    for edge in (0, 1))
    return replace(line, steps=steps, values=values, bounds=bounds, band=" ".join([*lower, *reversed(upper)]),
                   thin="" if bounds else " ".join(map(at, steps, values)),
                   thick=_line(list(map(at, steps, [mean[k] for k in kept]))))


def _kept(count: int) -> list[int]:
    """Returns the indices of every n-th of `count` values, and of the last.

    n is a power of two, so that the pointer reads two runs of different lengths at the same steps.
    """
    n = 1
    while count > n * MOST_POINTS:
        n *= 2
    return sorted({*range(0, count, n), count - 1})


def _line(points: list[str]) -> str:
    """Returns a polyline. A single point becomes a short line, because a line without length is invisible."""
    if len(points) != 1:
        return " ".join(points)
    x, y = points[0].split(",")
    return f"{x},{y} {float(x) + 4:.1f},{y}"


def _range(values: Sequence[float], *, from_zero: bool) -> tuple[float, float]:
    """Returns the range of the axis, rounded outwards to one and a half digits."""
    zero = [0.0] if from_zero else []
    low, high = min([*zero, *values]), max([*zero, *values])
    if high - low < sys.float_info.min:  # a range whose tenth may be 0
        return low, low + 1.0
    unit = 10 ** math.floor(math.log10(high - low)) / 2
    return math.floor(low / unit) * unit, math.ceil(high / unit) * unit
