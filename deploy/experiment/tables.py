"""The numbers of an experiment, from its records alone.

Each run gives one value per measure; means and intervals are over seeds (Student's t), differences between two arms
are paired by seed. What an arm's runs lack (a critic's credit has no groups, say) is left out of its cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from deploy.comparison import TRAINED
from deploy.experiment.design import ARMS, COMPARISONS, CONFIRMING_SEEDS
from deploy.experiment.records import Record
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


def means(records: Sequence[Record]) -> dict[str, dict[str, Cell]]:
    """Arm -> measure -> cell, arms in the registry's order."""
    out: dict[str, dict[str, Cell]] = {}
    for arm in ARMS:
        columns = {m.name: list(by_seed(records, arm, m.of).values()) for m in measures(records)}
        cells = {name: _cell(values) for name, values in columns.items() if values}
        out |= {arm: cells} if cells else {}
    return out


def differences(records: Sequence[Record]) -> dict[tuple[str, str], dict[str, Cell]]:
    """(a, b) of COMPARISONS -> measure -> a - b over their common seeds, of which there must be two."""
    out: dict[tuple[str, str], dict[str, Cell]] = {}
    for a, b in COMPARISONS:
        for measure in measures(records):
            mine, others = (by_seed(records, arm, measure.of) for arm in (a, b))
            pairs = [mine[seed] - others[seed] for seed in sorted(mine.keys() & others.keys())]
            if len(pairs) > 1:
                out.setdefault((a, b), {})[measure.name] = _cell(pairs, paired=True)
    return out


def _cell(values: Sequence[float], *, paired: bool = False) -> Cell:
    mean, low, high = seed_interval(values)
    return Cell(mean=mean, low=low, high=high, n=len(values), detectable=detectable(values) if paired else None)


def parts(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The seeds that chose, and the fresh ones that confirm: never pooled."""
    fresh = [record for record in records if record.seed >= CONFIRMING_SEEDS]
    first = [record for record in records if record.seed < CONFIRMING_SEEDS]
    return {title: chosen for title, chosen in (("First seeds", first), ("Fresh seeds", fresh)) if chosen}


def as_lines(records: Sequence[Record], cold: Mapping[str, Any] | None = None) -> list[str]:
    """Markdown, aligned so that it reads as plain text too. `cold`: the cold start's line on the held-out games."""
    out: list[str] = []
    for title, chosen in parts(records).items():
        columns = measures(chosen)
        out += [f"## {title}", "", "Mean and 95% interval over seeds, half-width behind ±.", ""]
        out += _grid(["arm", "seeds", *(m.title for m in columns)], [
            [ARMS[arm].title, str(max(cell.n for cell in cells.values())),
             *(_mean(cells.get(m.name), m.form) for m in columns)] for arm, cells in means(chosen).items()])
        shown = [m for m in columns if m.name not in ("minutes", "singletons")]
        rows = [[f"{ARMS[a].title} - {ARMS[b].title}", str(max(cell.n for cell in cells.values())),
                 *(_difference(cells.get(m.name), m.form) for m in shown),
                 _detectable(cells.get(shown[0].name), shown[0].form)]
                for (a, b), cells in differences(chosen).items()]
        if rows:
            out += ["", "Differences, paired by seed; * where the interval excludes zero. Detectable: the smallest "
                        "true difference on held-out games", "that this many pairs find with 80% power.", ""]
            out += _grid(["difference", "pairs", *(m.title for m in shown), "detectable"], rows)
        out.append("")
    if cold is not None:
        out.append(f"The cold start wins {cold['success_rate']:.1%} of the {cold['tasks']} held-out games.")
    if len({record.code for record in records}) > 1:
        out.append(f"Made by {len({record.code for record in records})} versions of the code.")
    return out


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


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, columns padded."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *(line(row) for row in rows)]
