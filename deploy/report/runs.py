"""Reads runs as records to compare. Runs that differ only in seed, name and place are one arm."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deploy.report.figures import STEP
from deploy.report.tables import COLOURS, Arm, Record
from deploy.runs.folder import RunFolder, relocate
from deploy.runs.history import RunHistory
from deploy.runs.policies import find_begun
from envservice.registry import BUILT_IN
from learner.credit.registry import estimator, keys_read
from services.config.file import read_tree
from services.config.tree import CreditSection
from services.errors import UserError
from services.files import read_json
from services.process.own_code import OwnCodeRefusedError
from services.telemetry.metrics_file import MetricsRow

CREDIT = "learner.credit."
PLACES = ("name", "runs_dir", "seed", "model.path", "sft.enabled", "env.data", "env.servers", "env.cpus", "env.urls",
          "env.max_sessions", "env.memory_gb", "env.recycle_hours", "env.recycle_gb", "rollout.workers",
          "rollout.slots", "rollout.cpus", "rollout.gpus", "rollout.kv_cache_gb", "rollout.threads", "learner.ranks",
          "learner.cpus", "learner.gpus", "learner.threads", "redis.url", "ray.address", "learner.fewest_ranks",
          "placement.rollout", "placement.learner", "placement.environment", "placement.weights", "metrics.host",
          "metrics.port", "metrics.sinks")
"""Keys that say where and on which resources a run takes place, or that tell the runs of an arm apart."""
MAY_DIFFER = {*PLACES} - {"model.path", "sft.enabled"}
"""Keys in which runs of one arm may differ. Runs from different initial models are different arms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """The content of one run's folder."""

    folder: RunFolder
    config: dict[str, Any]
    """Dotted key -> value, from its config.yaml. A run of another version may have other keys."""
    games: str
    metrics: list[MetricsRow]
    evaluations: list[MetricsRow]
    summary: dict[str, Any]
    """Content of summary.json; {} before the run has finished."""

    @property
    def name(self) -> str:
        """Returns the name of its folder."""
        return self.folder.path.resolve().name

    @property
    def seed(self) -> int:
        """Returns the seed of its config, 0 if it has none."""
        return int(self.config.get("seed", 0))

    @property
    def credit(self) -> CreditSection | None:
        """Returns the section learner.credit of its config; None if it cannot be read."""
        with suppress(ValidationError):
            return CreditSection.model_validate({key.removeprefix(CREDIT): value for key, value in self.config.items()
                                                 if key.startswith(CREDIT)})
        return None

    @property
    def env(self) -> str:
        """Returns the environment's own name, with its variant."""
        named = (row["env"] for row in self.evaluations if "env" in row)
        return next(named, self.games.partition(" of ")[2].partition(" ")[0] or str(self.config.get("env.name", "")))

    @property
    def seconds(self) -> float:
        """Returns the wall time of all learner steps, including waiting for episodes."""
        return sum(value for row in self.metrics for key, value in row.items() if key.startswith("seconds/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Runs as records, their arms, and the keys in which arms differ."""

    arms: Mapping[str, Arm]
    records: Sequence[Record]
    paths: Mapping[str, Sequence[Path]]
    """Arm -> folders of its runs."""
    differing: Mapping[str, Sequence[str]]
    """Config key -> its value in each arm."""


def read_run(path: Path) -> ReportedRun:
    """Reads the folder of a run. Raises UserError if it is not one, or its run has not begun."""
    folder = find_begun(path)
    history, config = RunHistory(folder), read_tree(folder.config_file)
    summary = read_json(folder.summary, dict[str, Any]) if folder.summary.exists() else {}
    return ReportedRun(folder=folder, summary=summary, config=_flat(config),
                       games=identity.games if (identity := folder.identity()) else "",
                       metrics=history.metrics, evaluations=history.evaluations)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def applicable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config keys that matter for this run, without those of other environments, of stages that are off,
    and those that its estimator ignores. A config of another version is returned unchanged.

    Raises OwnCodeRefusedError for an estimator or a state key whose code may not be imported.
    """
    credit = {key.removeprefix(CREDIT): value for key, value in config.items() if key.startswith(CREDIT)}
    try:
        read = keys_read(CreditSection(**credit))
        critic = estimator(str(credit.get("estimator", "gagpo"))).needs_critic
    except OwnCodeRefusedError:
        raise
    except (ValidationError, UserError, TypeError):
        return dict(config)
    ignored = {f"{CREDIT}{key}" for key in credit if key not in read}
    others = [f"env.{name}." for name in BUILT_IN if name != config.get("env.name")]
    others += [] if critic else ["learner.critic."]
    off = set() if config.get("sft.enabled") else {key for key in config if key.startswith("sft.")} - {"sft.enabled"}
    return {key: value for key, value in config.items()
            if key not in ignored | off and not key.startswith(tuple(others))}


def compare_runs(runs: Sequence[ReportedRun]) -> Compared:
    """Groups runs into arms, in the order of their first runs, and each arm's runs by seed.

    Raises UserError for two runs of one arm and seed.
    """
    groups: dict[str, list[ReportedRun]] = {}
    cold = {run.folder.cold_model.resolve(): run for run in runs}
    for run in runs:
        settings = sorted(_settings(run, cold).items())
        groups.setdefault(json.dumps([run.games, settings], default=str), []).append(run)
    for members in groups.values():  # a shell gives seed 10 before seed 2
        members.sort(key=lambda run: run.seed)
    titles = _titles(list(groups.values()))
    records: list[Record] = []
    for title, members in zip(titles, groups.values(), strict=True):
        seeds: dict[int, ReportedRun] = {}
        for run in members:
            record = _record(run, title)
            if (other := seeds.setdefault(record.seed, run)) is not run:
                raise UserError(f"{other.folder.path} and {run.folder.path} have one config and one seed",
                                "give one of them: intervals are over seeds")
            records.append(record)
    firsts = [_settings(members[0], cold) | {"games": members[0].games} for members in groups.values()]
    keys = sorted({key for settings in firsts for key in settings})
    differing = {key: values for key in keys
                 if len(set(values := [str(settings.get(key, "")) for settings in firsts])) > 1}
    arms = {title: Arm(title=title, colour=colour, overrides={})
            for title, colour in zip(titles, cycle(COLOURS), strict=False)}
    paths = {title: [run.folder.path for run in members]
             for title, members in zip(titles, groups.values(), strict=True)}
    return Compared(arms=arms, records=records, paths=paths, differing=differing)


def in_common(compared: Compared) -> tuple[Compared, str]:
    """Returns the runs with curves cut to the learner steps that all have, and a sentence that says so; "" if all have
    the same steps.

    Means and last quarters of curves over different steps cannot be compared. A run without steps has no curve to cut.
    """
    steps = [set(record.curves[STEP]) for record in compared.records if record.curves]
    common = set[float | None]().union(*steps).intersection(*steps)
    if all(one == common for one in steps):
        return compared, ""
    records = [replace(record, curves={
        key: [value for value, step in zip(curve, record.curves[STEP], strict=True) if step in common]
        for key, curve in record.curves.items()}) for record in compared.records]
    return replace(compared, records=records), (
        "The runs do not have the same learner steps. Curves and the columns made from them are of the "
        f"{len(common)} that all have; evaluations and costs are of the complete runs.")


def seed_ranges(seeds: Sequence[int]) -> str:
    """Returns sorted seeds in a line, those that follow each other as one range: `0-49, 60`."""
    ends: list[tuple[int, int]] = []
    for seed in seeds:
        first = ends.pop()[0] if ends and ends[-1][1] + 1 == seed else seed
        ends.append((first, seed))
    return ", ".join(f"{first}" if first == last else f"{first}, {last}" if first + 1 == last else f"{first}-{last}"
                     for first, last in ends)


def _settings(run: ReportedRun, cold: Mapping[Path, ReportedRun]) -> dict[str, Any]:
    """Returns the config keys that define the arm of a run. `cold`: the runs by the folders of their cold starts. A run
    that begins with one of these, as in a sweep, gets the cold-start keys of that run."""
    config, model = run.config, run.config.get("model.path")
    first = None if config.get("sft.enabled") or model is None else cold.get(_moved(run, Path(str(model))).resolve())
    if first is not None:
        begins = {key: value for key, value in first.config.items() if _of_start(key)}
        config = {key: value for key, value in config.items() if not _of_start(key)} | begins
    return {key: value for key, value in config.items() if key not in MAY_DIFFER}


def _moved(run: ReportedRun, model: Path) -> Path:
    """Returns where the model of a run is if it was moved together with the run."""
    return relocate(model, Path(str(run.config.get("runs_dir", ""))), run.folder.path.absolute().parent)


def _of_start(key: str) -> bool:
    return key == "model.path" or key.startswith("sft.")


def _titles(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """Returns a title per arm: the common part of its runs' names, or their first name if that is too short."""
    short = [members[0].name if len(members) == 1 else _shared_start([run.name for run in members])
             for members in groups]
    return [text if text and short.count(text) == 1 else str(members[0].folder.path)
            for text, members in zip(short, groups, strict=True)]


def _shared_start(names: Sequence[str]) -> str:
    """Returns the common start of names, without `seed` and the first digits of seeds at its end."""
    columns = zip(*names, strict=False)
    start = "".join(letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, columns))
    if any(name[len(start):][:1].isdigit() for name in names):  # it ends within their numbers
        start = start.rstrip("0123456789")
    return start.rstrip("-_").removesuffix("seed").rstrip("-_")


def _record(run: ReportedRun, arm: str) -> Record:
    newest = {key: value for row in run.metrics for key, value in row.items()}  # no single row has all keys
    curves = {key: [row.get(key) for row in run.metrics] for key, value in newest.items()
              if isinstance(value, int | float | None) and key not in ("format", "time")}
    return Record(arm=arm, seed=run.seed, minutes=run.seconds / 60, curves=curves, evaluations=run.evaluations)


def cost(run: ReportedRun) -> dict[str, str]:
    """Returns the figures of a run's cost as text, by their titles; "" for one that the run does not have."""
    return {
        "RL minutes": f"{run.seconds / 60:.1f}",
        "GPU hours of RL": f"{gpus * run.seconds / 3600:.2f}" if (gpus := _gpus(run.config)) else "",
        "tokens": f"{_total(run, 'tokens_sampled'):,.0f} sampled, {_total(run, 'tokens_trained'):,.0f} trained",
    }


def costs(runs: Sequence[ReportedRun]) -> tuple[list[str], list[list[str]]]:
    """Returns head and rows of a table of runs, without the columns that no run has. Runs of one name are identified by
    their folders."""
    cells, names = [cost(run) for run in runs], Counter(run.name for run in runs)
    titles = [title for title in cells[0] if any(one[title] for one in cells)]
    return ["run", *titles], [
        [run.name if names[run.name] == 1 else str(run.folder.path), *(one[title] for title in titles)]
        for run, one in zip(runs, cells, strict=True)]


def _gpus(config: Mapping[str, Any]) -> float:
    """Returns the number of GPUs that a run held, from its dotted config. Each part of an engine holds `gpus`."""
    worker = (config.get("rollout.gpus") or 0) * (config.get("rollout.tensor_parallel") or 1)
    rank = config.get("learner.gpus") or 0
    return worker * (config.get("rollout.workers") or 0) + rank * (config.get("learner.ranks") or 0)


def _total(run: ReportedRun, key: str) -> float:
    return sum(row[key] or 0 for row in run.metrics)
