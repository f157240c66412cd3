"""Curves as numbers for an SVG: the page draws lines, the script reads values under the pointer. No HTTP, no markup."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from deploy.report.figures import FIGURES, moving_average
from deploy.runs.comparison import evaluation_kind
from services.amounts import number_of, rounded
from services.telemetry.evaluation_labels import curve_of

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 170, 44, 20, 8
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
    thin: str = ""
    """Points of the values. `thick` has those of the moving average."""
    thick: str = ""
    band: str = ""
    """Polygon of the 95% interval. Empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure with the lines of all runs."""

    name: str
    title: str
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
    for name, subplot in ((name, subplot) for name, subplots in FIGURES.items() for subplot in subplots):
        lines = [CurveLine(run=i, key=j, name=_label(names, i, key), steps=[row["step"] for row in known],
                           values=[row[key] for row in known])
                 for i, rows in enumerate(metrics) for j, key in enumerate(subplot.keys)
                 if (known := [row for row in rows if row.get(key) is not None])]
        if lines:
            charts.append(_chart(name, subplot.title, lines))
    return charts


def evaluation_chart(names: Sequence[str], evaluations: Sequence[Rows]) -> Chart | None:
    """Returns the success of the curve's evaluations with intervals, or None before the first. Each split and
    temperature has a line: a run may go on with others."""
    lines: list[CurveLine] = []
    bounds: list[list[tuple[float, float]]] = []
    for i, rows in enumerate(evaluations):
        curve = curve_of(rows)
        for j, (split, temperature) in enumerate(dict.fromkeys(map(evaluation_kind, curve))):
            same = [row for row in curve if evaluation_kind(row) == (split, temperature)]
            lines.append(CurveLine(run=i, key=j, name=_label(names, i, f"{split} T={temperature:g}, "
                                                                   f"{number_of(same[-1]['tasks'], 'game')}"),
                                   steps=[row["step"] for row in same], values=[row["success_rate"] for row in same]))
            bounds.append([(row["success_low"], row["success_high"]) for row in same])
    title = "Success of evaluations while training, 95% interval"
    return _chart("evaluation", title, lines, bounds, smooth=False) if lines else None


def _label(names: Sequence[str], i: int, key: str) -> str:
    return f"{names[i]} {key}" if len(names) > 1 else key


def _chart(name: str, title: str, lines: list[CurveLine], bounds: list[list[tuple[float, float]]] | None = None, *,
           smooth: bool = True) -> Chart:
    seen = [value for line in lines for value in line.values]
    seen += [edge for pairs in bounds or [] for pair in pairs for edge in pair]
    low, high = _range(seen)
    first, last = min(min(line.steps) for line in lines), max(max(line.steps) for line in lines)

    def at(step: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 8) * (step - first) / max(last - first, 1)
        return f"{x:.1f},{y_of(value):.1f}"

    def y_of(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))

    drawn: list[CurveLine] = []
    for i, line in enumerate(lines):
        mean = moving_average(line.values) if smooth else line.values
        kept = _kept(len(line.steps))
        steps, values = [line.steps[k] for k in kept], [line.values[k] for k in kept]
        edges = list(zip(steps, (bounds[i][k] for k in kept), strict=True)) if bounds else []
        lower, upper = (_line([at(step, pair[edge]) for step, pair in edges]).split() for edge in (0, 1))
        band = " ".join([*lower, *reversed(upper)])
        drawn.append(replace(line, steps=steps, values=values, band=band,
                             thin=" ".join(map(at, steps, values)) if smooth else "",
                             thick=_line(list(map(at, steps, [mean[k] for k in kept])))))
    ticks = [(y_of(value), rounded(value)) for value in (low, (low + high) / 2, high)]
    marks = [(float(at(step, low).split(",")[0]), str(step)) for step in sorted({first, (first + last) // 2, last})]
    return Chart(name=name, title=title, lines=drawn, ticks=ticks, marks=marks)


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


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Returns the range of the axis: from 0 if no value is below it, the top rounded up to one and a half digits."""
    low, high = min([0.0, *values]), max([0.0, *values])
    if high - low < sys.float_info.min:  # a range whose tenth may be 0
        return low, low + 1.0
    unit = 10 ** math.floor(math.log10(high - low)) / 2
    return math.floor(low / unit) * unit, math.ceil(high / unit) * unit
