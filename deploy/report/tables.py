"""Tables of means and paired differences over runs, from their records alone.

Each run gives one value per measure. Means and intervals are over seeds (Student's t); differences between two arms
are paired by seed. If an arm's runs lack a measure (a critic's credit has no state groups, for example), its cells are
empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any

from deploy.runs.comparison import Kind, after_rl, evaluation_kind
from services.statistics import detectable, paired_test, seed_interval, spread
from services.telemetry.evaluations import on_curve

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#000000", "#F0E442", "#56B4E9")
"""Okabe and Ito's colour-blind safe set, in the order in which arms take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One of the configurations that are compared. Its runs differ only in seed, name and place."""

    title: str
    colour: str
    """Colour of its curves, the same in every figure."""
    overrides: Mapping[str, Any]
    runnable: bool = True
    """False if its estimator has changed since its runs. They are shown, but no run is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The results of one run. Curves have one value per learner step, or None if it was not finite."""

    arm: str
    seed: int
    minutes: float
    """Wall time."""
    curves: dict[str, list[float | None]]
    """Key of metrics.jsonl -> its values."""
    evaluations: list[dict[str, Any]]
    """Rows of evaluations.jsonl: the curve (`step-...`) and the held-out games (`panel-...`)."""


LAST = 3
"""Number of evaluations at the end of a run whose mean is a measure. One policy's score moves from step to step."""
LATE = 0.25
"""Share of the steps at the end of a run over which episode length and inadmissible actions are averaged."""


def volatility(curve: Sequence[float | None]) -> float | None:
    """Returns the standard deviation of the changes between steps, divided by the mean. Needs three finite values."""
    values = [value for value in curve if value is not None]
    if len(values) < 3 or fmean(values) == 0:
        return None
    return spread([after - before for before, after in pairwise(values)]) / fmean(values)


def mean_of(curve: Iterable[float | None]) -> float | None:
    """Returns the mean of the finite values, or None without any."""
    values = [value for value in curve if value is not None]
    return fmean(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One column. `form`: format spec of its means. Differences get a sign, and those of percentages are in points."""

    name: str
    title: str
    form: str
    of: Callable[[Record], float | None]
    meaning: str = ""
    """The meaning, if the title does not say it."""


def _along(record: Record) -> list[Mapping[str, Any]]:
    """Returns the evaluations during training."""
    return [row for row in record.evaluations if on_curve(row["label"])]


def _after(kind: Kind) -> Callable[[Record], float | None]:
    return lambda record: next((row["success_rate"] for row in after_rl(record.evaluations)
                                if evaluation_kind(row) == kind), None)


def _at(step: int, kind: Kind) -> Callable[[Record], float | None]:
    return lambda record: next((row["success_rate"] for row in _along(record)
                                if row["step"] == step and evaluation_kind(row) == kind), None)


def last_evaluations(record: Record, kind: Kind | None = None) -> float | None:
    """Returns the mean success of the LAST evaluations during training, of one kind or all; None if there are fewer.

    The evaluation at step 0 is the cold start's and does not count.
    """
    rows = sorted((row["step"], row["success_rate"]) for row in _along(record)
                  if row["step"] and (kind is None or evaluation_kind(row) == kind))
    return fmean(rate for _, rate in rows[-LAST:]) if len(rows) >= LAST else None


def _late(curve: Sequence[float | None]) -> float | None:
    return mean_of(curve[-max(1, round(LATE * len(curve))):])


def _by_kind(name: str, title: str, made: Mapping[Kind, Callable[[Record], float | None]],
             meaning: str = "") -> list[Measure]:
    """Returns one column for each kind of evaluation. With several kinds, all titles have split and temperature, and so
    have all names but the first: `last`, `last_validation_T1`; but `heldout_T1`, not `heldout_heldout_T1`."""
    return [Measure(name=f"{name}{'' if split == name else f'_{split}'}_T{t:g}" if index else name,
                    title=f"{title} ({split}, T={t:g})" if len(made) > 1 else title, form=".1%", of=of,
                    meaning=meaning) for index, ((split, t), of) in enumerate(made.items())]


def _evaluated(records: Sequence[Record]) -> list[Measure]:
    """Returns the columns of evaluations: after training, the last ones during it, and each step's."""
    after = {kind: _after(kind) for record in records for kind in map(evaluation_kind, after_rl(record.evaluations))}
    steps = sorted({(row["step"], evaluation_kind(row)) for record in records for row in _along(record)})
    late = {kind: partial(last_evaluations, kind=kind) for kind in sorted({kind for step, kind in steps if step})
            if sum(step > 0 and other == kind for step, other in steps) >= LAST}
    columns = _by_kind("heldout", "held-out", after or {("", 0.0): lambda _: None})
    columns += _by_kind("last", f"last {LAST}", late, f"mean success of the last {LAST} evaluations during training")
    for step, same in groupby(steps, key=itemgetter(0)):
        kinds = [kind for _, kind in same]
        title = f"{kinds[0][0]} at {step}" if len(kinds) == 1 else f"at {step}"
        columns += _by_kind(f"step_{step}", title, {kind: _at(step, kind) for kind in kinds})
    return columns


def measures(records: Sequence[Record]) -> list[Measure]:
    """Returns all columns, one of them for each step at which these runs were evaluated."""
    return [*_evaluated(records), *ALONG_THE_RUN,
            Measure(name="minutes", title="minutes", form=".1f", of=lambda record: record.minutes,
                    meaning="of the learner steps, with the waits for episodes")]


def _of_curve(name: str, title: str, form: str, key: str, *, meaning: str = "",
              of: Callable[[Sequence[float | None]], float | None] = mean_of) -> Measure:
    """Returns a measure of one curve, by default its mean."""
    return Measure(name=name, title=title, form=form, meaning=meaning,
                   of=lambda record: of(record.curves[key]) if key in record.curves else None)


ALONG_THE_RUN = (
    _of_curve("area", "training area", ".1%", "success_rate",
              meaning="mean success of the training episodes over all learner steps"),
    _of_curve("length", "late length", ".1f", "episode_length", of=_late,
              meaning="mean turns of an episode over the last quarter of the steps"),
    _of_curve("inadmissible", "late inadmissible", ".1%", "inadmissible_share", of=_late,
              meaning="share of turns with an inadmissible action over that quarter"),
    _of_curve("volatility", "gradient volatility", ".2f", "grad_norm", of=volatility,
              meaning="standard deviation of the gradient norm's change from step to step, divided by its mean"),
    _of_curve("iqr", "advantage IQR", ".2f", "credit/advantage_iqr",
              meaning="interquartile range of the advantages of a step, mean over the steps"),
    _of_curve("tail", "beyond 1", ".1%", "credit/share_above_one",
              meaning="share of turns whose advantage is above 1 or below -1"),
    _of_curve("singletons", "singletons", ".1%", "credit/singleton_share",
              meaning="share of turns whose state no other turn of the group has"),
)
SIZES = (
    _of_curve("singletons", "alone", ".1%", "credit/singleton_share"),
    _of_curve("share_2_4", "2 to 4", ".1%", "credit/share_2_4"),
    _of_curve("share_5_8", "5 to 8", ".1%", "credit/share_5_8"),
    _of_curve("share_above_8", "above 8", ".1%", "credit/share_above_8"),
    _of_curve("size", "mean size", ".1f", "credit/group_size_mean"),
)
"""Shares of turns by the size of their state group over all learner steps, as in the paper's table 5."""


def explained(grid: Grid, columns: Sequence[Measure]) -> Grid:
    """Returns a table of these columns whose note says what they mean."""
    meanings = {column.title.partition(" (")[0]: column.meaning for column in columns if column.meaning}
    texts = [f"{title}: {meaning}" for title, meaning in meanings.items()]
    return replace(grid, note=f"{grid.note}\n{'; '.join(texts)}.") if texts else grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A mean over `n` runs or pairs, and its 95% interval: infinite for one run, or equal differences other than 0."""

    mean: float
    low: float
    high: float
    n: int
    detectable: float | None = None
    """For a difference: the smallest true difference that this many pairs of this spread find with 80% power."""


def by_seed(records: Iterable[Record], arm: str, of: Callable[[Record], float | None]) -> dict[int, float]:
    """Returns seed -> value of one arm, for the seeds that have one."""
    return {record.seed: value for record in records
            if record.arm == arm and (value := of(record)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A comparison: arms in the order of the tables, pairs (a, b) for a - b, and the columns of both."""

    arms: Mapping[str, Arm]
    comparisons: Sequence[tuple[str, str]]
    columns: Sequence[Measure]


def means(records: Sequence[Record], design: Design) -> dict[str, dict[str, Cell]]:
    """Returns arm -> measure -> cell, with arms in the design's order."""
    out: dict[str, dict[str, Cell]] = {}
    for arm in design.arms:
        columns = {m.name: list(by_seed(records, arm, m.of).values()) for m in design.columns}
        cells = {name: _cell(values) for name, values in columns.items() if values}
        out |= {arm: cells} if cells else {}
    return out


def differences(records: Sequence[Record], design: Design) -> dict[tuple[str, str], dict[str, Cell]]:
    """Returns pair (a, b) -> measure -> a - b over their common seeds, for pairs with at least two."""
    out: dict[tuple[str, str], dict[str, Cell]] = {}
    for a, b in design.comparisons:
        for measure in design.columns:
            mine, others = (by_seed(records, arm, measure.of) for arm in (a, b))
            pairs = [mine[seed] - others[seed] for seed in sorted(mine.keys() & others.keys())]
            if len(pairs) > 1:
                mean, low, high, _ = paired_test(pairs)
                cell = Cell(mean=mean, low=low, high=high, n=len(pairs), detectable=detectable(pairs))
                out.setdefault((a, b), {})[measure.name] = cell
    return out


def summary_of(records: Sequence[Record], design: Design) -> dict[str, Any]:
    """Returns the tables for machines. An infinite interval is null."""
    arms = {arm: _finite(cells) for arm, cells in means(records, design).items()}
    pairs = [{"a": a, "b": b, **_finite(cells)} for (a, b), cells in differences(records, design).items()]
    return {"arms": arms, "differences": pairs}


def _finite(cells: Mapping[str, Cell]) -> dict[str, dict[str, Any]]:
    return {name: finite(cell) for name, cell in cells.items()}


def finite(one: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass. Numbers that are not finite become None, because JSON lacks them."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(one).items()}


def _cell(values: Sequence[float]) -> Cell:
    mean, low, high = seed_interval(values)
    return Cell(mean=mean, low=low, high=high, n=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of text cells, for a page or a terminal."""

    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def means_grid(records: Sequence[Record], design: Design) -> Grid:
    """Returns one line per arm. A cell over fewer seeds than others of its line shows their number. The note names the
    seeds that an arm lacks."""
    rows = [[design.arms[arm].title, str(most), *(_mean(cells.get(m.name), m.form, most) for m in design.columns)]
            for arm, cells in means(records, design).items() if (most := max(cell.n for cell in cells.values()))]
    return Grid(note="Mean and 95% interval over seeds, half-width behind ±." + _lacking(records, design),
                head=["arm", "seeds", *(m.title for m in design.columns)], rows=rows)


def _lacking(records: Sequence[Record], design: Design) -> str:
    """Returns a line that names the arms without some of the seeds, "" if all have the same ones."""
    seeds = {arm: {record.seed for record in records if record.arm == arm} for arm in design.arms}
    every = set[int]().union(*seeds.values())
    lacks = [f"{design.arms[arm].title} lacks {', '.join(map(str, sorted(every - own)))}"
             for arm, own in seeds.items() if own and own != every]
    return f"\nNot every arm has all seeds: {'; '.join(lacks)}." if lacks else ""


def differences_grid(records: Sequence[Record], design: Design) -> Grid:
    """Returns one line per pair of arms with at least two common seeds. A cell over fewer pairs shows their number."""
    shown = [m for m in design.columns if m.name not in ("minutes", "singletons")]
    rows = [[f"{design.arms[a].title} - {design.arms[b].title}", str(most),
             *(_difference(cells.get(m.name), m.form, most) for m in shown),
             _detectable(cells.get(shown[0].name), shown[0].form)]
            for (a, b), cells in differences(records, design).items() if (most := max(c.n for c in cells.values()))]
    return Grid(note="Differences, paired by seed, those of percentages in points; * where the interval excludes zero. "
                "Detectable: the smallest true\ndifference on held-out games that this many pairs find with 80% power.",
                head=["difference", "pairs", *(m.title for m in shown), "detectable"], rows=rows)


def _mean(cell: Cell | None, form: str, most: int) -> str:
    if cell is None:
        return ""
    fewer = f" (n={cell.n})" if cell.n < most else ""
    return f"{format(cell.mean, form)}{half_width(cell.mean, cell.high, form)}{fewer}"


def _difference(cell: Cell | None, form: str, most: int) -> str:
    """Returns the cell of a difference, with a mark if its interval excludes zero."""
    if cell is None:
        return ""
    mark = "*" if cell.low > 0 or cell.high < 0 else ""
    fewer = f" (n={cell.n})" if cell.n < most else ""
    return f"{format(cell.mean, '+z' + form).rstrip('%')}{half_width(cell.mean, cell.high, form)}{mark}{fewer}"


def half_width(mean: float, high: float, form: str) -> str:
    """Returns the half-width of an interval, such as ` ±2.1`, or nothing if it is infinite."""
    return "" if math.isinf(high) else f" ±{format(high - mean, form).rstrip('%')}"


def _detectable(cell: Cell | None, form: str) -> str:
    if cell is None or cell.detectable is None:
        return ""
    return "∞" if math.isinf(cell.detectable) else format(cell.detectable, form).rstrip("%")
