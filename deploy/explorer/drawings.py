"""Curves, and the states of a group as a graph, as numbers for an SVG. No HTTP, no markup."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deploy.explorer.groups import Group, mean_value
from deploy.report.figures import CURVES_TITLE, FIGURES, Subplot, env_figures, moving_average
from deploy.runs.comparison import by_kind
from services.amounts import number_of, rounded
from services.telemetry.evaluations import curve_of, envs_of, in_env

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 184, 44, 412, 8, 150
"""Size of the drawing, and the sides of its axes."""
MOST_POINTS = 600
"""Most points of a line, its last one not counted. Longer lines are thinned, to keep the pages of long runs small."""
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    """One curve of one run. `run` and `key` are the indices of its run and of its curve in the chart."""

    run: int
    key: int
    name: str
    steps: list[int]
    values: list[float]
    bounds: Sequence[tuple[float, float]] = ()
    """95% interval of each value, or empty."""
    thin: str = ""
    """Points of the values; empty if they have intervals, because `thick` has the values then."""
    thick: str = ""
    """Points of the moving average, or of values with intervals."""
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


# The states of a group as a layered drawing: geometry only, the template draws it.
#
# A state's layer is the earliest step at which any episode was in it, so a layer holds at most as many states as the
# group has episodes. Steps at which no state was new have no layer: they would be empty space. Within a layer states
# are ordered by the mean place of their neighbours: those above, then below, then above (barycentre heuristic). Edges
# that lead back to an earlier layer, or stay in one, are bent aside.

LAYER, GAP, MARGIN = 52, 116, 60
WIDEST_GAP = 180
"""States of a layer are GAP apart. If the column has space, they are up to WIDEST_GAP apart, for longer labels."""
LETTER = 5.6
"""Width of a label's letter. The page sets labels in 9.5 pixels."""
END_GAP = 116
"""Distance between the centres of end nodes, which are boxes with text."""
NARROWEST = 560
"""The page draws a graph at least as wide as its column, so a narrower one would become too large to read."""
SHADES = 8
_ENDS = {"won": "won", "lost": "lost", "turns": "out of turns", "context": "out of context"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A state, or an end of episodes."""

    x: float
    y: float
    r: float
    visits: int
    text: str
    """The observation; of an end, its name."""
    label: str
    """The action that led to the state most often, `start` for where episodes begin."""
    room: int
    """Letters of the label for which there is space between the state's neighbours."""
    value: float | None
    shade: int
    """Shade of V̄ on a scale from 0 to the group's largest: 0 to SHADES."""
    end: str
    """Kind of the end. Empty for a state."""
    k: int
    t: int
    """Step of its first visit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An action that led from one state to another."""

    path: str
    action: str
    count: int
    chosen: bool
    """Whether the highlighted episode took it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGraph:
    """The drawing. Edges come first, so that nodes are drawn over them."""

    width: int
    height: int
    nodes: list[Node]
    edges: list[Edge]


def draw(group: Group, follow: int | None = None) -> StateGraph:
    """Returns the drawing of a group with state keys. `follow`: the episode whose path is highlighted."""
    moves: Counter[tuple[str, str, str]] = Counter()
    followed: set[tuple[str, str, str]] = set()
    ends: Counter[str] = Counter()
    for episode in group.episodes:
        keys = [step.state or "" for step in episode.steps] + [f"end {episode.end}"]
        ends[keys[-1]] += 1
        for step, here, there in zip(episode.steps, keys, keys[1:], strict=False):
            moves[here, there, step.action] += 1
            if episode.k == follow:
                followed.add((here, there, step.action))
    layers = {key: min(visit.step.t for visit in visits) for key, visits in group.visits.items()}
    layers |= dict.fromkeys(ends, max(layers.values(), default=0) + 1)
    ranks = {layer: rank for rank, layer in enumerate(sorted(set(layers.values())))}
    layers = {key: ranks[layer] for key, layer in layers.items()}
    places = _places(layers, moves)
    width = int(max(x for x, _ in places.values()) + MARGIN)
    aside = max(0.0, (NARROWEST - width) / 2)
    places = {key: (x + aside, y) for key, (x, y) in places.items()}
    highest = max([1e-9, *(mean_value(visits) or 0.0 for visits in group.visits.values())])
    labels, rooms = _labels(moves), _rooms(places, max(width, NARROWEST))
    nodes = [_state(group, key, places[key], highest, label=labels.get(key, "start"), room=rooms[key])
             for key in group.visits]
    nodes += [Node(x=places[key][0], y=places[key][1], r=11, visits=count, text=_ENDS.get(key[4:], key[4:]), label="",
                   room=0, value=None, shade=0, end=key[4:], k=0, t=0) for key, count in ends.items()]
    edges = [Edge(path=_path(places[a], places[b]), action=action, count=count, chosen=(a, b, action) in followed)
             for (a, b, action), count in sorted(moves.items(), key=lambda item: item[0] in followed)]
    return StateGraph(width=max(width, NARROWEST), height=(max(layers.values()) + 1) * LAYER + MARGIN,
                      nodes=nodes, edges=edges)


def _labels(moves: Counter[tuple[str, str, str]]) -> dict[str, str]:
    """Returns state -> the action that most often led to it from another state."""
    led: dict[str, Counter[str]] = defaultdict(Counter)
    for (a, b, action), count in moves.items():
        if a != b:
            led[b][action] += count
    return {state: actions.most_common(1)[0][0] for state, actions in led.items()}


def _rooms(places: dict[str, tuple[float, float]], width: int) -> dict[str, int]:
    """Returns state -> letters that fit between it and its neighbours in the layer, or the edges of the drawing."""
    rows: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for key, (x, y) in places.items():
        rows[y].append((x, key))
    rooms: dict[str, int] = {}
    for row in rows.values():
        row.sort()
        ends = [-row[0][0], *(x for x, _ in row), 2 * width - row[-1][0]]  # the drawing ends half way to a neighbour
        for before, (x, key), after in zip(ends, row, ends[2:], strict=False):
            rooms[key] = int(min(x - before, after - x) / LETTER)
    return rooms


def _state(group: Group, key: str, place: tuple[float, float], highest: float, *, label: str,
           room: int) -> Node:
    visits = group.visits[key]
    first, value = visits[0], mean_value(visits)
    return Node(x=place[0], y=place[1], r=min(16.0, 3.0 + 2.2 * math.sqrt(len(visits))), visits=len(visits),
                text=first.step.observation, label="start" if first.step.t == 0 else label, room=room, value=value,
                end="", k=first.k, t=first.step.t,
                shade=0 if value is None else round(SHADES * min(max(value / highest, 0.0), 1.0)))


def _places(layers: dict[str, int], moves: Counter[tuple[str, str, str]]) -> dict[str, tuple[float, float]]:
    """Returns key -> (x, y)."""
    rows: dict[int, list[str]] = defaultdict(list)
    for key, layer in layers.items():
        rows[layer].append(key)
    neighbours: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for (a, b, _), count in moves.items():
        neighbours[a].append((b, count))
        neighbours[b].append((a, count))
    widest = max(len(row) for row in rows.values())
    gap = max(GAP, min(WIDEST_GAP, (NARROWEST - 2 * MARGIN) / max(1, widest - 1)))
    gaps = dict.fromkeys(rows, gap) | {max(rows): END_GAP}
    breadth = max(gaps[layer] * (len(row) - 1) for layer, row in rows.items())
    x: dict[str, float] = {}

    def spread(layer: int) -> None:
        left = MARGIN + (breadth - gaps[layer] * (len(rows[layer]) - 1)) / 2
        x.update((key, left + gaps[layer] * i) for i, key in enumerate(rows[layer]))

    for layer in rows:
        spread(layer)
    for downwards in (True, False, True):
        for layer in sorted(rows, reverse=not downwards):
            def centre(key: str, layer: int = layer, sign: int = 1 if downwards else -1) -> float:
                near = [(x[other], count) for other, count in neighbours[key] if (layer - layers[other]) * sign > 0]
                total = sum(count for _, count in near)
                return sum(place * count for place, count in near) / total if total else x[key]

            rows[layer].sort(key=centre)
            spread(layer)
    return {key: (x[key], MARGIN / 2 + LAYER * layers[key]) for key in layers}


def _path(a: tuple[float, float], b: tuple[float, float]) -> str:
    (ax, ay), (bx, by) = a, b
    if a == b:
        return f"M{ax:.0f} {ay:.0f}c22 -20 22 20 0 0"
    if by > ay:
        middle = (ay + by) / 2
        aside = 0.0 if by - ay <= LAYER else 18.0  # a long edge goes round the layers between
        return f"M{ax:.0f} {ay:.0f}C{ax + aside:.0f} {middle:.0f} {bx + aside:.0f} {middle:.0f} {bx:.0f} {by:.0f}"
    bend = 34 + 0.12 * (ay - by)
    aside, at = max(ax - bend, 4.0), max(bx - bend, 4.0)
    return f"M{ax:.0f} {ay:.0f}C{aside:.0f} {ay - 8:.0f} {at:.0f} {by + 8:.0f} {bx:.0f} {by:.0f}"
