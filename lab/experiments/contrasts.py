"""Planned contrasts, their p-values corrected by Holm, and those that credit-observation/README.md fixed.

The primary outcome there is the mean success over the last evaluations of a run. A contrast without two pairs stays in
its family with p = 1, so an unfinished experiment is never corrected for fewer contrasts than were planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deploy.report.tables import LAST, Grid, Record, by_seed, half_width, last_evaluations
from lab.experiments.credit.design import ARMS, CONFIRMING_SEEDS
from services.statistics import holm, paired_test

QUESTION = ("gagpo", "gigpo")
"""The contrast a - b that each start tests."""
STARTS = ("weak", "plateaued", "random-teacher")
"""Folders of the starts. Holm's correction of QUESTION covers them."""
KEYS = (("gagpo-adm", "gagpo"), ("gagpo-stay", "gagpo"), ("gigpo-adm", "gigpo"), ("gagpo_loo-adm", "gagpo"),
        ("gagpo_graph-adm", "gagpo"))
"""Contrasts a - b of estimators by keys, at one start."""
TERMS = (("gigpo-undivided", "gigpo"), ("gagpo-mc-broadcast", "gagpo-mc"))
"""Contrasts a - b of what GiGPO's terms cost, at one start."""
GRAPH = (("crbc-adm", "gagpo"), ("graphhca-adm", "gagpo"), ("graft-adm", "gagpo"), ("gagpo_loo-episode-adm", "gagpo"),
         ("gagpo_loo-episode-adm", "gagpo_loo-adm"), ("crbc-adm", "crbc-step-adm"), ("crbc-adm", "crbc"),
         ("gagpo-state", "gagpo"))
"""Contrasts a - b of estimators on the group's graph, at one start (graph-credit/README.md)."""
FAMILIES = {"estimators by keys": KEYS, "what GiGPO's terms cost": TERMS, "graph credit": GRAPH}
"""Holm's correction covers the contrasts of one family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One tested difference, in points of success: its mean with the 95% interval over `pairs` seeds."""

    name: str
    pairs: int
    mean: float
    low: float
    high: float
    p: float
    corrected: float
    """p after Holm's correction over its family."""


def between_starts(starts: Mapping[str, Sequence[Record]]) -> list[Contrast]:
    """Returns QUESTION at each start, corrected over all of STARTS."""
    return tested({name: paired(starts.get(name, ()), QUESTION) for name in STARTS})


def between_arms(records: Sequence[Record], family: Sequence[tuple[str, str]]) -> list[Contrast]:
    """Returns the contrasts of one of FAMILIES, corrected over all of them."""
    return tested({" - ".join(ARMS[arm].title for arm in pair): paired(records, pair) for pair in family})


def paired(records: Sequence[Record], pair: tuple[str, str]) -> list[float]:
    """Returns the differences in points over the fresh seeds that both arms have."""
    fresh = [record for record in records if record.seed >= CONFIRMING_SEEDS]
    a, b = (by_seed(fresh, arm, last_evaluations) for arm in pair)
    return [100 * (a[seed] - b[seed]) for seed in sorted(a.keys() & b.keys())]


def tested(family: Mapping[str, Sequence[float]]) -> list[Contrast]:
    """Returns the contrasts (name -> paired differences) with at least two pairs. The correction counts the others too.
    """
    tests = {name: paired_test(values) if len(values) > 1 else (0.0, 0.0, 0.0, 1.0) for name, values in family.items()}
    corrected = dict(zip(tests, holm([p for *_, p in tests.values()]), strict=True))
    return [Contrast(name=name, pairs=len(family[name]), mean=mean, low=low, high=high, p=p, corrected=corrected[name])
            for name, (mean, low, high, p) in tests.items() if len(family[name]) > 1]


def contrasts_grid(contrasts: Sequence[Contrast], *, what: str, planned: int) -> Grid:
    """Returns one line per contrast. `what` names the column of names; `planned` is the size of the family."""
    rows = [[one.name, str(one.pairs), f"{one.mean:+.1f}{half_width(one.mean, one.high, '.1f')}", shown_p(one.p),
             shown_p(one.corrected)] for one in contrasts]
    return Grid(note=f"Planned: success on the held-out games, mean of the last {LAST} evaluations, in points with 95% "
                     f"interval.\nTwo-sided paired t-test over seeds; corrected by Holm over the {planned} that were "
                     "planned.", head=[what, "pairs", "difference", "p", "corrected p"], rows=rows)


def shown_p(value: float) -> str:
    """Formats a p-value. Smaller ones than 0.001 are below what the test's assumptions bear, and below its arithmetic
    from 1e-15 on."""
    return "<0.001" if value < 0.001 else f"{value:.2g}"
