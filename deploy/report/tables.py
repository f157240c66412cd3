"""Tables of means and paired differences over runs, from their records alone.

Each run gives one value per measure; means and intervals are over seeds (Student's t), differences between two arms
are paired by seed. What an arm's runs lack (a critic's credit has no groups, say) is left out of its cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from deploy.report.arms import Arm
from deploy.runs.comparison import TRAINED
from deploy.runs.records import Record
from services.statistics import detectable, seed_interval, spread

LATE = 0.25
"""Share of the steps, the last ones, that episode length is averaged over."""


def volatility(curve: Sequence[float | None]) -> float | None:
    """Standard deviation of the changes from step to step, over the mean. Needs three finite values."""
    values = [value for value in curve if value is not None]
    if len(values) < 3 or fmean(values) == 0:
        return None
    return spread([after - before for before, after in pairwise(values)]) / fmean(values)


def mean_of(curve: Iterable[float | None]) -> float | None:
    """Of the finite values; None without any."""
    values = [value for value in curve if value is not None]
    return fmean(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One column. `form` prints it; differences take the same with a sign."""

    name: str
    title: str
    form: str
    of: Callable[[Record], float | None]


def _panel(record: Record) -> float | None:
    """At the first temperature of the panel."""
    return next((row["success_rate"] for row in record.evaluations if row["label"] == TRAINED), None)


def _at(step: int) -> Callable[[Record], float | None]:
    def success(record: Record) -> float | None:
        rows = (row for row in record.evaluations if row["label"].startswith("step-") and row["step"] == step)
        return next((row["success_rate"] for row in rows), None)

    return success


def _curve(key: str, of: Callable[[Sequence[float | None]], float | None]) -> Callable[[Record], float | None]:
    return lambda record: of(record.curves[key]) if key in record.curves else None


def _late(curve: Sequence[float | None]) -> float | None:
    return mean_of(curve[-max(1, round(LATE * len(curve))):])


def measures(records: Sequence[Record]) -> list[Measure]:
    """All columns; the fixed budgets are the steps that these runs were evaluated at."""
    steps = sorted({(row["step"], row["split"]) for record in records for row in record.evaluations
                    if row["label"].startswith("step-")})
    return [
        Measure(name="heldout", title="held-out", form=".1%", of=_panel),
        *(Measure(name=f"step_{step}", title=f"{split} at {step}", form=".1%", of=_at(step)) for step, split in steps),
        Measure(name="area", title="training area", form=".1%", of=_curve("success_rate", mean_of)),
        Measure(name="length", title="late length", form=".1f", of=_curve("episode_length", _late)),
        Measure(name="volatility", title="gradient volatility", form=".2f", of=_curve("grad_norm", volatility)),
        Measure(name="iqr", title="advantage IQR", form=".2f", of=_curve("credit/advantage_iqr", mean_of)),
        Measure(name="tail", title="beyond 1", form=".1%", of=_curve("credit/share_above_one", mean_of)),
        Measure(name="singletons", title="singletons", form=".1%", of=_curve("credit/singleton_share", mean_of)),
        Measure(name="minutes", title="minutes", form=".1f", of=lambda record: record.minutes),
    ]


SIZES = (
    Measure(name="singletons", title="alone", form=".1%", of=_curve("credit/singleton_share", mean_of)),
    Measure(name="share_2_4", title="2 to 4", form=".1%", of=_curve("credit/share_2_4", mean_of)),
    Measure(name="share_5_8", title="5 to 8", form=".1%", of=_curve("credit/share_5_8", mean_of)),
    Measure(name="share_above_8", title="above 8", form=".1%", of=_curve("credit/share_above_8", mean_of)),
    Measure(name="size", title="mean size", form=".1f", of=_curve("credit/group_size_mean", mean_of)),
)
"""Shares of steps by the size of their state group, as the paper's table 5, over all learner steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mean over `n` runs or pairs with its 95% interval; infinite where one value says nothing of the spread."""

    mean: float
    low: float
    high: float
    n: int
    detectable: float | None = None
    """Of a difference: the smallest true one that this many pairs of this spread find with 80% power."""


def by_seed(records: Iterable[Record], arm: str, of: Callable[[Record], float | None]) -> dict[int, float]:
    """Seed -> value of one arm, where it has one."""
    found = {record.seed: of(record) for record in records if record.arm == arm}
    return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is compared: arms in the order of the tables, pairs (a, b) for a - b, and the columns of both."""

    arms: Mapping[str, Arm]
    comparisons: Sequence[tuple[str, str]]
    columns: Sequence[Measure]


def means(records: Sequence[Record], design: Design) -> dict[str, dict[str, Cell]]:
    """Arm -> measure -> cell, arms in the design's order."""
    out: dict[str, dict[str, Cell]] = {}
    for arm in design.arms:
        columns = {m.name: list(by_seed(records, arm, m.of).values()) for m in design.columns}
        cells = {name: _cell(values) for name, values in columns.items() if values}
        out |= {arm: cells} if cells else {}
    return out


def differences(records: Sequence[Record], design: Design) -> dict[tuple[str, str], dict[str, Cell]]:
    """(a, b) of the design -> measure -> a - b over their common seeds, of which there must be two."""
    out: dict[tuple[str, str], dict[str, Cell]] = {}
    for a, b in design.comparisons:
        for measure in design.columns:
            mine, others = (by_seed(records, arm, measure.of) for arm in (a, b))
            pairs = [mine[seed] - others[seed] for seed in sorted(mine.keys() & others.keys())]
            if len(pairs) > 1:
                out.setdefault((a, b), {})[measure.name] = _cell(pairs, paired=True)
    return out


def summary_of(records: Sequence[Record], design: Design) -> dict[str, Any]:
    """For machines; an interval that is infinite is null."""
    arms = {arm: _finite(cells) for arm, cells in means(records, design).items()}
    pairs = [{"a": a, "b": b, **_finite(cells)} for (a, b), cells in differences(records, design).items()]
    return {"arms": arms, "differences": pairs}


def _finite(cells: Mapping[str, Cell]) -> dict[str, dict[str, float | None]]:
    return {name: {key: value if value is not None and math.isfinite(value) else None
                   for key, value in asdict(cell).items()} for name, cell in cells.items()}


def _cell(values: Sequence[float], *, paired: bool = False) -> Cell:
    mean, low, high = seed_interval(values)
    return Cell(mean=mean, low=low, high=high, n=len(values), detectable=detectable(values) if paired else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table as text, for a page or a terminal."""

    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def means_grid(records: Sequence[Record], design: Design) -> Grid:
    """One line per arm."""
    rows = [[design.arms[arm].title, str(max(cell.n for cell in cells.values())),
             *(_mean(cells.get(m.name), m.form) for m in design.columns)]
            for arm, cells in means(records, design).items()]
    return Grid(note="Mean and 95% interval over seeds, half-width behind ±.",
                head=["arm", "seeds", *(m.title for m in design.columns)], rows=rows)


def differences_grid(records: Sequence[Record], design: Design) -> Grid:
    """One line per pair of arms with two common seeds."""
    shown = [m for m in design.columns if m.name not in ("minutes", "singletons")]
    rows = [[f"{design.arms[a].title} - {design.arms[b].title}", str(max(cell.n for cell in cells.values())),
             *(_difference(cells.get(m.name), m.form) for m in shown),
             _detectable(cells.get(shown[0].name), shown[0].form)]
            for (a, b), cells in differences(records, design).items()]
    return Grid(note="Differences, paired by seed; * where the interval excludes zero. Detectable: the smallest true "
                "difference on held-out games\nthat this many pairs find with 80% power.",
                head=["difference", "pairs", *(m.title for m in shown), "detectable"], rows=rows)


def _mean(cell: Cell | None, form: str) -> str:
    if cell is None:
        return ""
    half = "" if math.isinf(cell.high) else f" ±{format(cell.high - cell.mean, form).rstrip('%')}"
    return f"{format(cell.mean, form)}{half}"


def _difference(cell: Cell | None, form: str) -> str:
    if cell is None:
        return ""
    mark = "*" if cell.low > 0 or cell.high < 0 else ""
    return f"{format(cell.mean, '+' + form)} ±{format(cell.high - cell.mean, form).rstrip('%')}{mark}"


def _detectable(cell: Cell | None, form: str) -> str:
    return "" if cell is None or cell.detectable is None else format(cell.detectable, form)
