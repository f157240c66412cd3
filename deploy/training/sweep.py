"""`gagpo train --sweep NAME`: trains one run per variant of a config, all from one cold start, and compares them.

    runs/<name>/<variant>/   a run: its folder, report and figures
    runs/<name>/sweep.json   the table, paired by game against the first variant of the same seed; sweep.txt for people

All variants share the tasks and the first variant's cold start. They differ only in their overrides: the seed is the
config's too, unless a variant sets it. SWEEPS come with the package, for a paper's tables:

    table1      the RL methods of table 1 at three seeds            table2   the ablations at three seeds
    table3      a grid of gamma and lambda                          ablations   table 2 at one seed

The text of arXiv 2605.13217 that we have lacks the numbers of tables 2 and 3. The cells of table 3 are our choice.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from deploy.console.plain import ignoring_lost_output
from deploy.runs.comparison import gain_of, judged_by
from deploy.runs.configs import lay_over, load_config
from deploy.runs.folder import RunFolder, check_run, compared
from deploy.training.child_runs import FAILURES_IN_A_ROW, ChildFailed, run_child
from services.amounts import number_of
from services.config.file import dump_config
from services.config.redis import child_secrets
from services.config.tree import Config
from services.errors import UserError
from services.files import write_whole
from services.outages import retry_files
from services.statistics import spread, success_interval
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

    Raises UserError if the runs could not be compared, or if the sweep's folder holds a single run.
    """
    if not config.eval.panel and not config.eval.every:
        raise UserError("a sweep compares by evaluations, and this config asks for none", "set eval.panel=256")
    if RunFolder(config.run_dir).identity():
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

    The password in redis.url is not compared, because no file has it.
    """
    folder = RunFolder(config.run_dir)
    if not folder.summary.exists():
        return False
    theirs, mine = compared(load_config(folder.config_file), config)
    return theirs | {"runs_dir": mine["runs_dir"]} == mine


def check_folders(config: Config, made: Mapping[str, Config], *, resume: bool) -> None:
    """Raises UserError if the runs of the sweep may not start in their folders."""
    if not resume and any(RunFolder(one.run_dir).identity() for one in made.values()):
        raise UserError(f"{config.run_dir} holds runs of a sweep already",
                        "continue it by the same command with --resume, or give this sweep another name (name=...)")
    for one in made.values():
        check_run(one, resume=resume)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of a sweep."""

    finished: list[Variant]
    """Variants whose runs have finished, in their order."""
    failures: list[ChildFailed]
    """One error for each run that failed."""


def run_sweep(config: Config, variants: Sequence[Variant], *, quiet: bool) -> Swept:
    """Trains one variant after another, and after each writes the table of those that finished. Finished runs are
    skipped.

    After a failed run the others continue, except after FAILURES_IN_A_ROW, or if the first run failed, whose cold start
    they need.
    """
    made = configs(config, variants)
    failures, in_a_row = list[ChildFailed](), 0
    for number, (name, one) in enumerate(made.items(), 1):
        if is_finished(one):
            continue
        if not quiet:
            with ignoring_lost_output():
                print(f"variant {number} of {len(made)}: {name}", flush=True)
        try:
            _train(name, one, RunFolder(made[variants[0].name].run_dir), quiet=quiet)
            in_a_row = 0
            _write_results(config, made, variants)
        except ChildFailed as error:
            failures.append(ChildFailed(f"{error}; continue with --resume", error.status))
            in_a_row += 1
        if in_a_row == FAILURES_IN_A_ROW or (failures and number == 1):
            break
    return Swept(finished=_write_results(config, made, variants), failures=failures)


def _write_results(config: Config, made: Mapping[str, Config], variants: Sequence[Variant]) -> list[Variant]:
    """Returns the variants whose runs have finished, and writes their tables if there are any."""
    finished = [variant for variant in variants if is_finished(made[variant.name])]
    if finished:
        tables = partial(write, config.run_dir, table(made, finished), over_seeds(made, finished))
        retry_files(tables, seconds=config.learner.collective_s,
                    what=f"{config.run_dir / 'sweep.json'} could not be written")
    return finished


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

    It is over the first of `variants` that has the same seed and the method of variants[0], because a difference of
    seeds is not one of methods. If there is no such run, or the two share no game, there is no gain.
    """
    first: dict[tuple[float, int], dict[str, Any]] = {}
    lines: list[SweepLine] = []
    for variant in variants:
        for row in final(RunFolder(made[variant.name].run_dir)):
            won, temperature = row["success_by_task"], row["temperature"]
            mean, low, high = success_interval(list(won.values()), round(row["episodes"] / row["tasks"]))
            at = temperature, made[variant.name].seed
            if variant.method == variants[0].method:
                first.setdefault(at, row)
            base = first.get(at)
            gain = None if base is None or base is row else gain_of(base, row)
            gains = dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)) if gain else {}
            lines.append(SweepLine(variant=variant.name, title=variant.title, panel=row["split"],
                                   temperature=temperature, games=len(won), success=mean, low=low, high=high, **gains))
    return sorted(lines, key=lambda line: -line.temperature)


SEEDS = 3
"""Seeds of tables 1 and 2, as the paper has."""
_TOKEN_LOSS: Mapping[str, object] = {"learner.loss.ratio": "token", "learner.loss.aggregation": "tokens"}
_GAGPO: Mapping[str, object] = {
    "learner.credit.estimator": "gagpo", "learner.credit.gamma": 0.95, "learner.credit.lam": 0.8,
    "learner.loss.ratio": "sequence", "learner.loss.aggregation": "actions"}
"""The settings of GAGPO's presets in which those of other methods differ."""


def _ablation(name: str, title: str, changed: Mapping[str, object]) -> Variant:
    return Variant(name=name, title=title, overrides={**_GAGPO, **changed})


ABLATIONS = (
    _ablation("full", "full", {}),
    _ablation("no-temporal", "without temporal credit (λ = 0)", {"learner.credit.lam": 0.0}),
    _ablation("monte-carlo", "Monte Carlo (λ = 1)", {"learner.credit.lam": 1.0}),
    _ablation("token-ratio", "without sequence ratio", _TOKEN_LOSS),
    _ablation("trajectory-reward", "+ trajectory reward", {"learner.credit.broadcast": 1.0}),
    _ablation("batch-norm", "batch normalisation", {"learner.credit.normalize": "batch"}),
    _ablation("no-norm", "no normalisation", {"learner.credit.normalize": "none"}),
)
"""The rows of table 2: GAGPO over a config, which may be the preset of any method of table 1, with one change each."""


def methods(config: Config) -> tuple[Variant, ...]:
    """Returns the RL methods of table 1, with the settings of their presets (deploy/configs/paper) over `config`, which
    may be the preset of any of them.

    PPO has no groups, so it plays as many tasks as the others play episodes.
    """
    learner = config.learner
    mode = "mean_norm" if all(entry.name == "webshop" for entry in config.env.entries) else "mean_std_norm"
    laid: Mapping[str, Mapping[str, object]] = {
        "GiGPO": {"estimator": "gigpo", "gamma": 0.95, "omega": 1.0, "mode": mode},
        "GRPO": {"estimator": "grpo", "mode": "mean_std_norm", "statistics": "rows"},
        "RLOO": {"estimator": "rloo", "statistics": "rows"},
        "PPO": {"estimator": "ppo", "gamma": 1.0, "lam": 1.0, "values": "tokens"},
    }
    alone = {"learner.groups_per_step": learner.groups_per_step * learner.group_size, "learner.group_size": 1}
    others = (Variant(name=title.lower(), title=title, overrides={
        **{f"learner.credit.{key}": value for key, value in keys.items()},
        **_TOKEN_LOSS, **(alone if title == "PPO" else {})}) for title, keys in laid.items())
    return Variant(name="gagpo", title="GAGPO", overrides=_GAGPO), *others


def grid(_: Config) -> tuple[Variant, ...]:
    """Returns table 3: the default first, then its neighbours."""
    cells = [(0.95, 0.8), *((gamma, lam) for gamma in (0.9, 0.95, 1.0) for lam in (0.5, 0.8, 0.95)
                            if (gamma, lam) != (0.95, 0.8))]
    return tuple(Variant(name=f"gamma{gamma:g}-lambda{lam:g}", title=f"γ = {gamma:g}, λ = {lam:g}",
                         overrides={"learner.credit.gamma": gamma, "learner.credit.lam": lam}) for gamma, lam in cells)


def with_seeds(variants: Sequence[Variant], first: int) -> tuple[Variant, ...]:
    """Returns each variant at SEEDS seeds from `first` on. All methods of one seed come before the next seed."""
    return tuple(replace(variant, name=f"{variant.name}-seed{seed}", title=f"{variant.title}, seed {seed}",
                         method=variant.title, overrides={**variant.overrides, "seed": seed})
                 for seed in range(first, first + SEEDS) for variant in variants)


SWEEPS: Mapping[str, Callable[[Config], tuple[Variant, ...]]] = {
    "ablations": lambda _: ABLATIONS,
    "table1": lambda config: with_seeds(methods(config), config.seed),
    "table2": lambda config: with_seeds(ABLATIONS, config.seed),
    "table3": grid,
}


Spread = tuple[float, float | None]
"""Mean, and sample standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodLine:
    """Final success of one method over its seeds. Each value is a pair: mean, and sample standard deviation, which one
    seed does not have."""

    method: str
    panel: str
    temperature: float
    seeds: int
    success: Spread
    by_type: Mapping[str, Spread]
    score: Spread | None
    """The environment's own score; None if it has none."""


def over_seeds(made: Mapping[str, Config], variants: Sequence[Variant]) -> list[MethodLine]:
    """Returns one line per method and temperature, of the variants that belong to a method."""
    rows: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for variant in variants:
        for row in final(RunFolder(made[variant.name].run_dir)) if variant.method else ():
            rows[row["temperature"], variant.method].append(row)
    return [_line(method, temperature, same) for (temperature, method), same in
            sorted(rows.items(), key=lambda item: -item[0][0])]


def _line(method: str, temperature: float, rows: Sequence[dict[str, Any]]) -> MethodLine:
    scores = [row["task_score"] for row in rows if row.get("task_score") is not None]
    types = sorted(set.intersection(*(set(row["success_by_type"]) for row in rows)))
    return MethodLine(
        method=method, panel=rows[0]["split"], temperature=temperature, seeds=len(rows),
        success=_pair([row["success_rate"] for row in rows]),
        by_type={name: _pair([row["success_by_type"][name] for row in rows]) for name in types},
        score=_pair(scores) if len(scores) == len(rows) else None)


def _pair(values: Sequence[float]) -> Spread:
    return sum(values) / len(values), spread(values) if len(values) > 1 else None


def as_text(lines: Sequence[SweepLine], methods: Sequence[MethodLine]) -> str:
    """Returns both tables as text, that of methods as the papers print it: percent, mean ± standard deviation."""
    out = ["Success at the end, mean and 95% interval over games; gain over the first of its seed, paired by "
           "game:"]
    for line in lines:
        gain = "" if line.gain is None else f"  {line.gain:+6.1%} [{line.gain_low:+6.1%}, {line.gain_high:+6.1%}]"
        out.append(f"  {line.title:<32} T={line.temperature:<4g} {line.success:6.1%} "
                   f"[{line.low:6.1%}, {line.high:6.1%}]{gain}  {number_of(line.games, 'game')} of {line.panel}")
    if methods:
        types = list(methods[0].by_type)
        out += ["Mean and standard deviation over seeds, in percent:",
                "  " + f"{'':<34}{'seeds':>7}" + "".join(f"{name[:12]:>13}" for name in [*types, "all", "score"])]
        for method in methods:
            cells = [*(method.by_type.get(name) for name in types), method.success, method.score]
            out.append(f"  {method.method:<26} T={method.temperature:<5g}{method.seeds:>7}"
                       + "".join(f"{_percent(cell):>13}" for cell in cells))
    return "\n".join(out) + "\n"


def _percent(cell: Spread | None) -> str:
    if cell is None:
        return "-"
    mean, deviation = cell
    return f"{100 * mean:.1f} ± {'-' if deviation is None else f'{100 * deviation:.1f}'}"


def write(folder: Path, lines: Sequence[SweepLine], methods: Sequence[MethodLine]) -> None:
    """Writes sweep.json and sweep.txt."""
    tables = {"format": FORMAT, "table": [asdict(line) for line in lines]}
    if methods:
        tables["over_seeds"] = [asdict(method) for method in methods]
    write_whole(folder / "sweep.json", json.dumps(tables, indent=1) + "\n")
    write_whole(folder / "sweep.txt", as_text(lines, methods))
