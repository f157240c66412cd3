"""A run's folder: who it belongs to, where its parts lie, and what has been done already."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.config.file import config_digest, dump_config
from services.config.tree import Config
from services.errors import UserError

FORMAT = 1
MAY_CHANGE = re.compile(
    r"(runs_dir|steps|eval\..*|checkpoint\..*|redis\..*|ray\..*|metrics\..*"
    r"|env\.(data|servers|urls|max_sessions|memory_gb|recycle_hours|recycle_gb)"
    r"|rollout\.(workers|slots|cpus|gpus|kv_cache_gb|threads)|learner\.(ranks|cpus|gpus|threads))")
"""Keys that may differ on --resume: how far and where a run goes, never what it learns from or how."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths below runs/<name>/."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def identity_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def summary(self) -> Path:
        """The final table; there once the run has finished."""
        return self.path / "summary.json"

    @property
    def targets(self) -> Path:
        """What Prometheus is to scrape, in the form of its file_sd; there while the run goes on.

        Beside the run's folder and not in it: Prometheus takes a pattern for the name of a file, and none for folders.
        """
        return targets_folder(self.path.parent) / f"{self.path.name}.json"

    @property
    def cold_model(self) -> Path:
        """The policy that RL starts from, when the run made it."""
        return self.path / "model-cold-start"

    @property
    def more_model(self) -> Path:
        """The cold start after the minutes that RL took."""
        return self.path / "model-more-cold-start"

    @property
    def trained_model(self) -> Path:
        """The policy after the last learner step."""
        return self.path / "model"

    def identity(self) -> dict[str, Any]:
        """run.json; {} for a fresh folder."""
        return json.loads(self.identity_file.read_text()) if self.identity_file.exists() else {}


def targets_folder(runs_dir: Path) -> Path:
    """Where all runs of a folder name their endpoints."""
    return runs_dir / ".monitor" / "targets"


def learning_digest(config: Config) -> str:
    """Digest of all in the config that decides what a run learns."""
    return config_digest(config, but=MAY_CHANGE)


def open_run(config: Config, *, games: str, resume: bool) -> tuple[RunFolder, str]:
    """The run's folder, made if need be, and its id (its name with a nonce, the prefix of its keys in Redis).

    `games` names what is played and what plays it: results on other games, or of another version of their rules, never
    mix in one folder. Raises UserError when the folder belongs to another config or to other games, or holds a run and
    `resume` is not given.
    """
    folder = RunFolder(config.run_dir)
    check_run(config, resume=resume)
    known = folder.identity()
    folder.path.mkdir(parents=True, exist_ok=True)
    if known and known["games"] != games:
        raise UserError(f"{config.run_dir} was played on {known['games']}, and now there is {games}",
                        "give this run another name (name=...), or the data and settings that it had")
    if not known:
        known = {"format": FORMAT, "run": f"{config.name}-{uuid.uuid4().hex[:8]}",
                 "learning": learning_digest(config), "games": games}
        folder.identity_file.write_text(json.dumps(known, indent=1) + "\n")
    dump_config(config, folder.config_file)
    return folder, str(known["run"])


def check_run(config: Config, *, resume: bool) -> None:
    """The checks of open_run without touching the disk."""
    known = RunFolder(config.run_dir).identity()
    if not known:
        return
    if known["learning"] != learning_digest(config):
        raise UserError(f"{config.run_dir} belongs to a run with another config",
                        "give this one another name (name=...) or delete that folder")
    if not resume:
        raise UserError(f"{config.run_dir} holds a run already",
                        "go on with it by --resume, or give this one another name (name=...)")
