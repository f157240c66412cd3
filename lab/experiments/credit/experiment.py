"""`python -m lab.experiments credit`: compares ways to assign credit over seeds, with one budget. Wiring only.

    shared parts ▸ runs, seed by seed ▸ a record of each ▸ table.md, summary.json, figures/

All results are in --out and small enough to be committed. A run that has a record is never made again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from deploy.report.tables import (
    Design,
    Grid,
    Record,
    by_seed,
    differences_grid,
    finite,
    means_grid,
    measures,
    summary_of,
)
from deploy.runs.configs import lay_over, load_config
from deploy.runs.model_sources import with_local_model
from deploy.training.child_runs import ChildFailed, failed
from lab.experiments.contrasts import FAMILIES, STARTS, between_arms, between_starts, contrasts_grid
from lab.experiments.credit.common import COMMON, check_settings, prepare, require_official
from lab.experiments.credit.design import (
    ARMS,
    COMPARISONS,
    CONFIRMING_SEEDS,
    PlannedRun,
    chosen,
    first_seeds,
    fresh_seeds,
    to_confirm,
)
from lab.experiments.credit.progress import RunsProgress
from lab.experiments.credit.records import ExperimentRecord, read_records
from lab.experiments.credit.runs import Runner, RunsFailed, left, only_one
from services.config.tree import Config
from services.errors import UserError
from services.files import write_whole
from services.telemetry.evaluations import COLD


def planned(records: Sequence[Record]) -> Design:
    """Returns the design of the credit experiment's tables."""
    return Design(arms=ARMS, comparisons=COMPARISONS, columns=measures(records))


def parts_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Returns the records of the choosing and of the confirming seeds, which are never pooled."""
    fresh = [record for record in records if record.seed >= CONFIRMING_SEEDS]
    first = [record for record in records if record.seed < CONFIRMING_SEEDS]
    return {title: chosen for title, chosen in (("First seeds", first), ("Fresh seeds", fresh)) if chosen}


def as_lines(records: Sequence[ExperimentRecord], cold: Mapping[str, Any] | None = None) -> list[str]:
    """Returns aligned Markdown that is readable as plain text. `cold`: the cold start's held-out evaluation."""
    out: list[str] = []
    for title, some in parts_of(records).items():
        out += [f"## {title}", ""]
        out += _grid_lines(means_grid(some, planned(some)))
        out += _grid_lines(differences_grid(some, planned(some)))
    for what, family in FAMILIES.items():
        out += _grid_lines(contrasts_grid(between_arms(records, family), what=what, planned=len(family)))
    if cold is not None:
        out.append(f"The cold start wins {cold['success_rate']:.1%} of the {cold['tasks']} held-out games.")
    if len({record.code for record in records}) > 1:
        out.append(f"Made by {len({record.code for record in records})} versions of the code.")
    return out


def starts_lines(starts: Mapping[str, Sequence[Record]]) -> list[str]:
    """Returns the planned contrast at each start (folder name -> records), as aligned Markdown."""
    return _grid_lines(contrasts_grid(between_starts(starts), what="GAGPO - GiGPO from", planned=len(STARTS)))


def _grid_lines(grid: Grid) -> list[str]:
    return [*grid.note.split("\n"), "", *_markdown(grid.head, grid.rows), ""] if grid.rows else []


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a Markdown table with padded columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *(line(row) for row in rows)]


CONFIG = "credit-experiment"
FORMAT = 1


def run(args: argparse.Namespace) -> int:
    """Makes the runs that are missing, then the tables. Raises UserError before anything heavy starts."""
    if args.report:
        return _report(args.out, as_json=args.json)
    config = with_local_model(load_config(args.config or CONFIG, args.overrides))
    wanted = _wanted(args)
    require_official(config)
    check_settings(config, parallel=args.parallel)
    _check_arms(config, wanted)
    if args.dry_run:
        print("\n".join(one.name for one in wanted))
        return 0
    failures: list[ChildFailed] = []
    try:
        _make(config, wanted, args)
    except ChildFailed as error:  # the cold start: there is nothing to report
        return failed(error)
    except RunsFailed as error:
        failures = error.failures
    if not failures or read_records(args.out):
        _report(args.out, as_json=args.json)
    return max([0, *map(failed, failures)])


def _wanted(args: argparse.Namespace) -> list[PlannedRun]:
    """Returns the runs to make: fresh seeds of the two arms to confirm, or the first seeds of all or named arms."""
    if not args.confirm:
        return first_seeds(chosen(args.arms), args.seeds)
    arms = chosen(args.arms) if args.arms else list(to_confirm(_scores(read_records(args.out))))
    return fresh_seeds(arms, args.seeds)


def _scores(records: Sequence[Record]) -> dict[str, list[float]]:
    """Returns arm -> success on held-out games at the first seeds."""
    first = [record for record in records if record.seed < CONFIRMING_SEEDS]
    (heldout,) = (measure for measure in measures(first) if measure.name == "heldout")
    arms = {record.arm for record in first}
    return {arm: list(by_seed(first, arm, heldout.of).values()) for arm in arms}


def _check_arms(config: Config, wanted: Sequence[PlannedRun]) -> None:
    """Raises UserError for an arm whose credit does not suit the config, such as a prompt without tags."""
    from deploy.launch.checks.preflight import check_learner

    for arm in dict.fromkeys(one.arm for one in wanted):
        check_learner(lay_over(config, ARMS[arm].overrides))


def _make(config: Config, wanted: Sequence[PlannedRun], args: argparse.Namespace) -> None:
    from deploy.launch.checks import preflight
    from deploy.launch.planning.fit import with_gpu

    config = with_gpu(config, partial(print, file=sys.stderr))
    task_sets = preflight.check(config)
    args.out.mkdir(parents=True, exist_ok=True)
    known = read_records(args.out)
    done = {(record.arm, record.seed) for record in known}
    with (only_one(config.run_dir),
          RunsProgress(len(wanted), done=sum((one.arm, one.seed) in done for one in wanted), parallel=args.parallel,
                       typical_s=60 * fmean(record.minutes for record in known) if known else None,
                       console=Console(stderr=args.json)) as progress):
        common = prepare(config, task_sets, args.out, progress)
        missing = left(args.out, wanted, config, common)
        progress.note(f"{len(missing)} of {len(wanted)} runs to make, {args.parallel} at once")
        runner = Runner(config=config, out=args.out, common=common, progress=progress, parallel=args.parallel,
                        hours=math.inf if args.hours is None else args.hours)
        if late := runner.make(missing):
            progress.note(f"{args.hours:g} hours are over: {late} runs are left for the next time")


def _report(out: Path, *, as_json: bool) -> int:
    """Writes table.md, summary.json and figures/ from the records; prints the table. Raises UserError without any."""
    from deploy.report.figures import PAPER, draw_heldout, write_figures

    records = read_records(out)
    if not records and (starts := {name: read_records(out / name) for name in STARTS if (out / name).is_dir()}):
        return _report_starts(out, starts, as_json=as_json)
    if not records:
        raise UserError(f"{out} holds no finished run", "run the experiment without --report")
    common = json.loads((out / COMMON).read_text(encoding="utf-8")) if (out / COMMON).exists() else {}
    lines = as_lines(records, _cold(common))
    write_whole(out / "table.md", "\n".join(lines) + "\n")
    parts = parts_of(records)
    summary = {"format": FORMAT, "parts": {title: summary_of(part, planned(part)) for title, part in parts.items()},
               "planned": [finite(one) for family in FAMILIES.values() for one in between_arms(records, family)]}
    write_whole(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    for title, part in parts.items():
        folder = out / "figures" / title.lower().replace(" ", "-")
        write_figures(folder, part, arms=ARMS, figures=PAPER)
        draw_heldout(folder / "heldout.png", part, ARMS)
    print(json.dumps(summary) if as_json else "\n".join(lines))
    return 0


def _report_starts(out: Path, starts: Mapping[str, Sequence[Record]], *, as_json: bool) -> int:
    """Writes and prints the planned contrast of the starts whose runs are in folders of `out`."""
    lines = starts_lines(starts) or ["No start has two finished pairs of GAGPO and GiGPO."]
    write_whole(out / "table.md", "\n".join(lines) + "\n")
    print(json.dumps([finite(one) for one in between_starts(starts)]) if as_json else "\n".join(lines))
    return 0


def _cold(common: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the cold start's evaluation on the held-out games."""
    return next((row for row in common.get("cold_evaluations", []) if row["label"] == COLD), None)
