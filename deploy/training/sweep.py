"""`gagpo train --sweep NAME`: trains one run per variant of a config, all from one cold start, and compares them.

    runs/<name>/<variant>/   a whole run: its folder, report and figures
    runs/<name>/sweep.json   the table, paired by game against the first variant of the same seed; sweep.txt for people

All variants share the tasks and the first variant's cold start. They differ only in their overrides: also the seed is
the config's, unless they set it. paper_tables.py has the sweeps that come with the package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deploy.console.plain import going_on
from deploy.runs.comparison import judged_by
from deploy.runs.configs import lay_over, load_config
from deploy.runs.differences import compared
from deploy.runs.folder import RunFolder, check_run
from deploy.training.child_runs import FAILURES_IN_A_ROW, ChildFailed, run_child
from services.amounts import number_of
from services.config.file import dump_config
from services.config.redis import child_secrets
from services.config.tree import Config
from services.errors import UserError
from services.files import write_whole
from services.patience import while_folder_away
from services.statistics import paired_gain, success_interval
from services.telemetry.metrics_file import GIVEN, append_row, read_evaluations

FORMAT = 1
CREDIT = "learner.credit."


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of a sweep's table. The later ones are compared with the first."""

    name: str
    title: str
    overrides: Mapping[str, object]
    method: str = ""
    """The method that this variant is one seed of. Empty: it stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLine:
    """Final success of one variant, in [0, 1], and its paired gain over the first variant of its seed (None for that).
    """

    variant: str
    title: str
    panel: str
    temperature: float
    games: int
    success: float
    low: float
    high: float
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


def configs(config: Config, variants: Sequence[Variant]) -> dict[str, Config]:
    """Returns the config of each variant's run. All later variants start from the first variant's cold start.

    Raises UserError if the runs could not be compared.
    """
    if not config.eval.panel and not config.eval.every:
        raise UserError("a sweep compares by evaluations, and this config asks for none", "set eval.panel=256")
    if RunFolder(config.run_dir).known():
        raise UserError(f"{config.run_dir} holds a single run", "give the sweep another name (name=...)")
    # The policy of more cold start is not in the table, and would double the time.
    shared = {"runs_dir": str(config.run_dir), "eval.compare_cold_start": False}
    if config.storage.url is not None:  # two sweeps have variants of one name
        shared["storage.url"] = f"{config.storage.url.rstrip('/')}/{config.name}"
    made: dict[str, Config] = {}
    for variant in variants:
        made[variant.name] = lay_over(config, {**variant.overrides, **shared, "name": variant.name})
        _check_variant(variant, made[variant.name])
        if config.sft.enabled and not made.keys() - {variant.name}:
            cold = RunFolder(made[variant.name].run_dir).cold_model
            shared |= {"sft.enabled": False, "sft.file": None, "model.path": str(cold.absolute())}
    return made


def _check_variant(variant: Variant, config: Config) -> None:
    """Raises UserError if the estimator ignores a variant's overrides, so that it would train like the first."""
    from learner.credit.registry import keys_read

    credit = config.learner.credit
    ignored = sorted(key for key in variant.overrides if key.startswith(CREDIT)
                     and key.removeprefix(CREDIT) not in keys_read(credit))
    if ignored:
        raise UserError(f"variant {variant.name} sets {ignored[0]}, and estimator {credit.estimator} does not read it",
                        "set learner.credit.estimator=gagpo")


def is_finished(config: Config) -> bool:
    """Whether a run of exactly this config has finished, wherever it was moved: its summary exists.

    Files have no password of redis.url.
    """
    folder = RunFolder(config.run_dir)
    if not folder.summary.exists():
        return False
    theirs, mine = compared(load_config(folder.config_file), config)
    return theirs | {"runs_dir": mine["runs_dir"]} == mine


def check_folders(config: Config, made: Mapping[str, Config], *, resume: bool) -> None:
    """Raises UserError if the runs of the sweep may not start in their folders."""
    if not resume and any(RunFolder(one.run_dir).known() for one in made.values()):
        raise UserError(f"{config.run_dir} holds runs of a sweep already",
                        "go on with it by the same command with --resume, or give this sweep another name (name=...)")
    for one in made.values():
        check_run(one, resume=resume)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of a sweep."""

    finished: list[Variant]
    """Variants whose runs have finished, in their order."""
    lines: list[SweepLine]
    """The table of those."""
    failures: list[ChildFailed]
    """One error for each run that failed."""


def run_sweep(config: Config, variants: Sequence[Variant], *, quiet: bool) -> Swept:
    """Trains one variant after another, and after each writes the table of those that finished. Finished runs are
    skipped.

    A failed run leaves the others to go on, except for the first one, with whose cold start they begin, and after
    FAILURES_IN_A_ROW.
    """
    made = configs(config, variants)
    failures, in_a_row = list[ChildFailed](), 0
    for number, (name, one) in enumerate(made.items(), 1):
        if is_finished(one):
            continue
        if not quiet:
            with going_on():
                print(f"variant {number} of {len(made)}: {name}", flush=True)
        try:
            _train(name, one, RunFolder(made[variants[0].name].run_dir), quiet=quiet)
            in_a_row = 0
            _results(config, made, variants)
        except ChildFailed as error:
            failures.append(ChildFailed(f"{error}; go on with --resume", error.status))
            in_a_row += 1
        if in_a_row == FAILURES_IN_A_ROW or (failures and number == 1):
            break
    finished, lines = _results(config, made, variants)
    return Swept(finished=finished, lines=lines, failures=failures)


def _results(config: Config, made: Mapping[str, Config],
             variants: Sequence[Variant]) -> tuple[list[Variant], list[SweepLine]]:
    """Returns the variants whose runs have finished, and their table, which it writes if there are any."""
    finished = [variant for variant in variants if is_finished(made[variant.name])]
    lines = table(made, finished)
    if finished:
        while_folder_away(partial(write, config.run_dir, lines), seconds=config.learner.collective_s,
                          what=f"{config.run_dir / 'sweep.json'} could not be written")
    return finished, lines


def _train(name: str, config: Config, first: RunFolder, *, quiet: bool) -> None:
    """Trains one variant in a child process, or the rest of its steps. Raises ChildFailed."""
    file = config.run_dir.with_name(f"{name}.yaml")  # a name may have dots
    dump_config(config, file)
    give_evaluations(RunFolder(config.run_dir), cold_evaluations(first))
    arguments = ["train", "--config", str(file), "--resume", *(["--json"] if quiet else [])]
    run_child(f"variant {name}", arguments, out=Path(os.devnull) if quiet else None,
              leave_s=config.supervision.leave_seconds, secrets=child_secrets(config.redis))


def cold_evaluations(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns the evaluations of a run's cold start, on the validation split and on the held-out games."""
    return [row for row in read_evaluations(folder.evaluations) if row["step"] == 0]


def give_evaluations(folder: RunFolder, rows: Sequence[dict[str, Any]]) -> None:
    """Gives a fresh run the evaluations of its cold start, so that it need not play those games again."""
    if rows and not folder.evaluations.exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        for row in rows:
            append_row(folder.evaluations, {**row, GIVEN: True})


def final(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns the evaluations that a run is judged by: the held-out games after RL, else the curve's last one."""
    return judged_by(read_evaluations(folder.evaluations))


def table(made: Mapping[str, Config], variants: Sequence[Variant]) -> list[SweepLine]:
    """Returns the lines by temperature and variant. A gain uses only games that both runs finished without a fault.

    It is over the first variant, or over that variant's method at the same seed: a difference of seeds is none of
    methods. If that run has not finished, or the two share no game, there is no gain.
    """
    first: dict[tuple[float, int], dict[str, float]] = {}
    lines: list[SweepLine] = []
    for variant in variants:
        for row in final(RunFolder(made[variant.name].run_dir)):
            mine, temperature = row["success_by_task"], row["temperature"]
            mean, low, high = success_interval(list(mine.values()), round(row["episodes"] / row["tasks"]))
            at = temperature, made[variant.name].seed
            if variant.method == variants[0].method:
                first.setdefault(at, mine)
            full, gain = first.get(at), None
            if full is not None and full is not mine and (both := full.keys() & mine.keys()):
                gain = paired_gain({task: full[task] for task in both}, {task: mine[task] for task in both})
            gains = dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)) if gain else {}
            lines.append(SweepLine(variant=variant.name, title=variant.title, panel=row["split"],
                                   temperature=temperature, games=len(mine), success=mean, low=low, high=high, **gains))
    return sorted(lines, key=lambda line: -line.temperature)


def as_text(lines: Sequence[SweepLine]) -> list[str]:
    """Returns the table as lines of text."""
    out = ["Success at the end, mean and 95% interval over games; gain over the first of its seed, paired by "
           "game:"]
    for line in lines:
        gain = "" if line.gain is None else f"  {line.gain:+6.1%} [{line.gain_low:+6.1%}, {line.gain_high:+6.1%}]"
        out.append(f"  {line.title:<32} T={line.temperature:<4g} {line.success:6.1%} "
                   f"[{line.low:6.1%}, {line.high:6.1%}]{gain}  {number_of(line.games, 'game')} of {line.panel}")
    return out


def write(folder: Path, lines: Sequence[SweepLine]) -> None:
    """Writes sweep.json and sweep.txt."""
    rows = [asdict(line) for line in lines]
    write_whole(folder / "sweep.json", json.dumps({"format": FORMAT, "table": rows}, indent=1) + "\n")
    write_whole(folder / "sweep.txt", "\n".join(as_text(lines)) + "\n")
