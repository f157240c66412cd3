"""Curves as numbers for an SVG: the page draws lines, the script reads values under the pointer. No HTTP, no markup."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deploy.report.figures import FIGURES, moving_average
from deploy.runs.comparison import evaluation_kind
from services.telemetry.curve import curve_of

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 170, 44, 20, 8
MOST_POINTS = 600
"""Most points of a drawn line. A longer line is drawn through every n-th value."""
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    """One key of one run."""

    run: int
    key: int
    name: str
    steps: list[int]
    values: list[float | None]
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
        lines = [CurveLine(run=i, key=j, name=_label(names, i, key), steps=[row["step"] for row in rows],
                      values=[row.get(key) for row in rows])
                 for i, rows in enumerate(metrics) for j, key in enumerate(subplot.keys)
                 if any(row.get(key) is not None for row in rows)]
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
            lines.append(CurveLine(run=i, key=j, name=_label(names, i, f"{split} T={temperature:g}"),
                                   steps=[row["step"] for row in same], values=[row["success_rate"] for row in same]))
            bounds.append([(row["success_low"], row["success_high"]) for row in same])
    return _chart("evaluation", "Success of evaluations, 95% interval", lines, bounds, smooth=False) if lines else None


def _label(names: Sequence[str], i: int, key: str) -> str:
    return f"{names[i]} {key}" if len(names) > 1 else key


def _chart(name: str, title: str, lines: list[CurveLine], bounds: list[list[tuple[float, float]]] | None = None, *,
           smooth: bool = True) -> Chart:
    seen = [value for line in lines for value in line.values if value is not None]
    seen += [edge for pairs in bounds or [] for pair in pairs for edge in pair]
    low, high = _range(seen)
    steps = [step for line in lines for step in line.steps]
    first, last = min(steps), max(steps)

    def at(step: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 8) * (step - first) / max(last - first, 1)
        return f"{x:.1f},{y_of(value):.1f}"

    def y_of(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))

    def points(line: CurveLine, values: Sequence[float | None]) -> str:
        stride = -(-len(values) // MOST_POINTS)
        pairs = [(s, v) for s, v in zip(line.steps, values, strict=True) if v is not None]
        return " ".join(at(*pair) for pair in pairs[::stride])

    drawn: list[CurveLine] = []
    for i, line in enumerate(lines):
        known = [(s, v) for s, v in zip(line.steps, line.values, strict=True) if v is not None]
        mean = moving_average([v for _, v in known]) if smooth else [v for _, v in known]
        edges = list(zip(line.steps, bounds[i], strict=True)) if bounds else []
        band = " ".join([*(at(s, pair[0]) for s, pair in edges), *(at(s, pair[1]) for s, pair in reversed(edges))])
        stride = max(1, -(-len(known) // MOST_POINTS))
        drawn.append(CurveLine(
            run=line.run, key=line.key, name=line.name, steps=line.steps, values=line.values, band=band,
            thin=points(line, line.values) if smooth else "",
            thick=_line([at(s, v) for (s, _), v in list(zip(known, mean, strict=True))[::stride]])))
    ticks = [(y_of(value), f"{value:.3g}") for value in (low, (low + high) / 2, high)]
    marks = [(float(at(step, low).split(",")[0]), str(step)) for step in sorted({first, (first + last) // 2, last})]
    return Chart(name=name, title=title, lines=drawn, ticks=ticks, marks=marks)


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
