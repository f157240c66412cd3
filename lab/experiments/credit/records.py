"""The record of a run: one JSON file of a few KB, from which all tables and figures are made.

    <out>/experiment.json         the shared parts: settings, task sets, cold start and its evaluations
    <out>/<arm>-seed<k>.json      one run
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy.report.runs import PLACES
from deploy.report.tables import Record
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory
from services.config.file import flatten
from services.config.tree import Config
from services.errors import UserError
from services.files import read_json, write_whole
from services.process.packages import OURS, installation_root

FORMAT = 1
CURVES = (
    "success_rate", "task_score", "episode_length", "invalid_share", "inadmissible_share", "env_steps", "grad_norm",
    "loss/policy", "loss/entropy", "loss/value", "explained_variance", "clip_fraction", "ratio_mean",
    "logprob_difference_mean",
)
"""Keys of metrics.jsonl that a record keeps, besides all under credit/."""
DIGITS = 5
"""Significant digits kept of a figure."""
PACKAGES = ("gagpo", "torch", "transformers", "ray", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord(Record):
    """One run of an experiment. `evaluations` are those during RL and the held-out games after it, with `wins`: one
    character per game of the task set in experiment.json, the number of samples won, or `-` if a fault ended the game.
    """

    settings: dict[str, Any]
    """Config keys that differ from the defaults, with their values."""
    cold_start: str
    """Digest of the policy that it started from."""
    code: str
    """Digest of our own code when the run started."""
    packages: dict[str, str]
    machine: str
    seconds: dict[str, float]
    """Wall time of its learner steps, by phase."""
    format: int = FORMAT


def settings_of(config: Config) -> dict[str, Any]:
    """Returns keys that differ from the defaults, without PLACES, so that keys of later versions change nothing."""
    return _beside(_defaults(config), config)


def _beside(defaults: Mapping[str, Any], config: Config) -> dict[str, Any]:
    return {key: value for key, value in flatten(config).items()
            if key not in PLACES and value != defaults.get(key)}


def _defaults(config: Config) -> dict[str, Any]:
    """Returns the default of each key that has one, and of each option of `learner.credit`."""
    from learner.credit.registry import SECTION, declared

    options = {f"{SECTION}{name}": default for name, default in declared(config.learner.credit).items()}
    defaults = options | flatten(Config(name="defaults", steps=1))
    defaults.pop("steps")
    return defaults


def same_settings(settings: Mapping[str, Any], config: Config, *, where: str) -> None:
    """Raises UserError that names the first key that differs. A key that is not in `settings` had its default."""
    defaults = _defaults(config)
    mine = _beside(defaults, config)
    for key in sorted(settings.keys() | mine.keys()):
        before, now = (each.get(key, defaults.get(key)) for each in (settings, mine))
        if before != now:
            raise UserError(f"{where} was made with {key}={before}, and now it is {now}",
                            "use the same config, or another --out")


def code_digest() -> str:
    """Returns the digest of all our Python files."""
    root, digest = installation_root(), hashlib.blake2b(digest_size=8)
    for path in sorted(path for top in OURS for path in (root / top).rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def wins(by_task: Mapping[str, float], tasks: Sequence[str], samples: int) -> str:
    """Returns `wins` as in ExperimentRecord, for at most nine samples."""
    return "".join("-" if task not in by_task else str(round(by_task[task] * samples)) for task in tasks)


def record_of(folder: Path, *, arm: str, config: Config, minutes: float, code: str,
              common: Mapping[str, Any]) -> ExperimentRecord:
    """Returns the record of a finished run in `folder`. `common` is experiment.json."""
    history = RunHistory(RunFolder(folder))
    metrics = history.metrics
    keys = [*CURVES, *(key for key in metrics[0] if key.startswith("credit/"))]
    phases = [key for key in metrics[0] if key.startswith("seconds/")]
    rows = [row for row in history.evaluations if row["step"]]
    return ExperimentRecord(
        arm=arm, seed=config.seed, settings=settings_of(config), cold_start=common["cold_start"], code=code,
        packages={name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs", minutes=_short(minutes),
        seconds={key.removeprefix("seconds/"): _short(sum(row[key] for row in metrics)) for key in phases},
        curves={key: [None if row[key] is None else _short(row[key]) for row in metrics] for key in keys},
        evaluations=[_evaluation(row, common["panels"]) for row in rows],
    )


def _evaluation(row: Mapping[str, Any], task_sets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    samples = row["episodes"] // max(1, row["tasks"])
    kept = ("label", "step", "split", "temperature", "tasks", "dropped", "success_rate", "episode_length")
    return {key: _short(row[key]) if isinstance(row[key], float) else row[key] for key in kept} | {
        "success_by_type": {name: _short(rate) for name, rate in row["success_by_type"].items()},
        "wins": wins(row["success_by_task"], task_sets[row["split"]], samples)}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def write(path: Path, value: object) -> None:
    """Writes one JSON object atomically, with each curve on one line."""
    lines = [f" {json.dumps(key)}: {json.dumps(part)}" for key, part in _parts(value)]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _parts(value: Any) -> list[tuple[str, Any]]:
    return list((value if isinstance(value, dict) else asdict(value)).items())


def read_records(out: Path) -> list[ExperimentRecord]:
    """Returns the records of all runs in `out`, sorted by name. Raises UserError for a broken file."""
    records: list[ExperimentRecord] = []
    for path in sorted(out.glob("*-seed*.json")):
        try:
            records.append(ExperimentRecord(**read_json(path, dict[str, Any])))
        except TypeError as error:
            raise UserError(f"{path} is not the record of a run ({error})",
                            "delete it, and the run is made again") from None
    return records
