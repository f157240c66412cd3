"""The stored runs of `python -m lab.experiments loglinear`, and the tables made from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from deploy.report.tables import half_width
from lab.experiments.contrasts import shown_p, tested
from services.errors import UserError
from services.statistics import seed_interval

FORMAT = 1
RATE = 0.08
"""The learning rate of the primary outcome."""
CONTRASTS = (("gagpo", "gigpo"), ("loo+adm", "gagpo"), ("loo+adm", "gigpo"), ("graph+adm", "gigpo"),
             ("loo+stay", "loo+adm"), ("graph+stay", "graph+adm"), ("gagpo+adm", "gagpo"), ("gigpo+adm", "gigpo"))
"""Pairs (a, b) for the contrasts a - b, paired by seed. Holm's correction covers all, per start and outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoglinearRun:
    """One finished run: success of the training episodes at each step, and on the held-out games at the end."""

    arm: str
    seed: int
    start: str
    rate: float
    success: list[float]
    heldout: float
    unchanged: float
    """Share of turns in the last five steps whose action changed nothing."""
    games: str
    seconds: float
    format: int = FORMAT

    @property
    def area(self) -> float:
        """Returns the mean success over all training steps."""
        return fmean(self.success)


def read_runs(file: Path) -> list[LoglinearRun]:
    """Returns the finished runs, each once, or [] without a file. Raises UserError for a line that is not a run."""
    try:
        found = [LoglinearRun(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    except (json.JSONDecodeError, TypeError) as error:
        raise UserError(f"{file} has a line that is not a run ({error})", "delete that line") from None
    return list({(one.arm, one.seed, one.start, one.rate): one for one in found}.values())


def as_lines(runs: Sequence[LoglinearRun]) -> list[str]:
    """Returns the tables: means by arm, then the contrasts with Holm's correction."""
    lines: list[str] = []
    for start, rate in sorted({(one.start, one.rate) for one in runs}, key=lambda x: (x[1] != RATE, x)):
        mine = [one for one in runs if (one.start, one.rate) == (start, rate)]
        lines += [f"{start} start, learning rate {rate:g}, {mine[0].games} games; success in %, mean and 95% interval",
                  f"  {'arm':18}{'seeds':>6}{'training area':>18}{'held-out':>18}{'changed nothing':>17}"]
        for arm in dict.fromkeys(one.arm for one in sorted(runs, key=lambda one: one.seed)):
            its = [one for one in mine if one.arm == arm]
            if its:
                lines.append(f"  {arm:18}{len(its):>6}{_points([x.area for x in its]):>18}"
                             f"{_points([x.heldout for x in its]):>18}{fmean(x.unchanged for x in its):>17.1%}")
        lines += _contrasts(mine)
    return lines


def _contrasts(mine: Sequence[LoglinearRun]) -> list[str]:
    lines = [f"  {'paired difference':32}{'pairs':>6}{'training area':>26}{'held-out':>26}"]
    value = {(one.arm, one.seed): one for one in mine}
    pairs = {f"{a} - {b}": [(value[a, seed], value[b, seed]) for arm, seed in value if arm == a and (b, seed) in value]
             for a, b in CONTRASTS}
    areas, games = (tested({name: [100 * (of(x) - of(y)) for x, y in both] for name, both in pairs.items()})
                    for of in (lambda one: one.area, lambda one: one.heldout))
    for area, heldout in zip(areas, games, strict=True):
        cells = [f"{one.mean:+.1f}{half_width(one.mean, one.high, '.1f')} {_p(one.corrected)}"
                 for one in (area, heldout)]
        lines.append(f"  {area.name:32}{area.pairs:>6}{cells[0]:>26}{cells[1]:>26}")
    return [*lines, "  p: Student's t over seeds, Holm's correction over the planned contrasts of this block", ""]


def _p(value: float) -> str:
    shown = shown_p(value)
    return f"p{shown}" if shown.startswith("<") else f"p={shown}"


def _points(values: Sequence[float]) -> str:
    mean, _, high = seed_interval(values)
    return f"{100 * mean:.1f}{half_width(100 * mean, 100 * high, '.1f')}"

