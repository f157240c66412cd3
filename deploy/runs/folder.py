"""A run's folder: who it belongs to, where its parts lie, and what has been done already."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deploy.runs.configs import load_config
from services.config.file import as_yaml, dump_config, flatten
from services.config.tree import Config
from services.errors import UserError
from services.files import Damaged, follow_folder, read_json, write_whole

FORMAT = 1
MAY_CHANGE = re.compile(
    r"(runs_dir|shared|steps|eval\..*|checkpoint\..*|redis\..*|ray\..*|metrics\..*"
    r"|env\.(data|servers|urls|token_file|max_sessions|memory_gb|recycle_hours|recycle_gb)"
    r"|rollout\.(workers|slots|cpus|gpus|kv_cache_gb|threads)"
    r"|learner\.(ranks|cpus|gpus|threads|token_budget|step_attempts|overdue_s|wait_s|collective_s))")
"""Keys that may differ on --resume: how far and where a run goes, never what it learns from or how."""
LOCK = ".lock"
OWN = frozenset({LOCK, "config.yaml", "log.jsonl", "evaluations.jsonl"})
"""What may be in a folder without run.json: a start was broken off there, or a sweep has given it evaluations."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: whose folder it is."""

    format: int = FORMAT
    run: str = ""
    games: str = ""


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
    def ledger(self) -> Path:
        """One line for each learner step: its manifest, as the store had it."""
        return self.path / "ledger.jsonl"

    @property
    def summary(self) -> Path:
        """The final table; there once the run has finished."""
        return self.path / "summary.json"

    @property
    def stage_file(self) -> Path:
        """What the run's driver does now, see deploy/runs/stage.py."""
        return self.path / "stage.json"

    @property
    def targets(self) -> Path:
        """Names the endpoints for Prometheus, in the form of its file_sd; there while the run goes on.

        It lies beside the run's folder and not in it: Prometheus takes patterns for names of files, not of folders.
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

    def known(self) -> Identity | None:
        """run.json; None for a fresh folder. Raises Damaged where it cannot be read and the run has left results.

        A disk that was full when a run began can leave an empty one, beside which nothing is lost.
        """
        try:
            return read_json(self.identity_file, Identity)
        except FileNotFoundError:
            return None
        except Damaged:
            if {entry.name for entry in self.path.iterdir()} - OWN - {self.identity_file.name}:
                raise
            return None


def targets_folder(runs_dir: Path) -> Path:
    """Where all runs of a folder name their endpoints."""
    return runs_dir / ".monitor" / "targets"


def differences(before: Config, now: Config) -> list[str]:
    """Says for each key that decides what a run learns, and that differs, both values."""
    mine, theirs = flatten(now), flatten(before)
    return [f"{key} is {as_yaml(theirs[key])} there and {as_yaml(mine[key])} here" for key in mine
            if mine[key] != theirs[key] and not MAY_CHANGE.fullmatch(key)]


def open_run(config: Config, *, games: str, resume: bool) -> tuple[RunFolder, str]:
    """Returns the run's folder, made if need be, and the run's id: its name with a nonce, the prefix of its Redis keys.

    `games` names the games and the engine: results on other games, or of another version of their rules, never mix in
    one folder. Raises UserError if the folder belongs to another config or to other games, or if it holds a run and
    `resume` is false.
    """
    folder = RunFolder(config.run_dir)
    check_run(config, resume=resume)
    known = folder.known()
    _make(config)
    if known and known.games != games:
        raise UserError(f"{config.run_dir} was played on {known.games}, and now there is {games}",
                        "give this run another name (name=...), or the data and settings that it had")
    # The config first: whoever finds the identity can rely on the config.
    dump_config(config, folder.config_file)
    if known is None:
        known = Identity(run=f"{config.name}-{uuid.uuid4().hex[:8]}", games=games)
        write_whole(folder.identity_file, json.dumps(msgspec.structs.asdict(known), indent=1) + "\n")
    return folder, known.run


@contextmanager
def locked(config: Config) -> Iterator[None]:
    """Holds the run's folder, which is made if need be: whoever comes second learns so before it writes anything.

    The lock ends with this process, however that ends. Raises UserError where another process has it.
    """
    folder = RunFolder(config.run_dir)
    check_folder(folder.path)
    _make(config)
    handle = os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _take(handle, folder.path)
        yield
    finally:
        os.close(handle)


def _take(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process works in {path}",
                        "wait for its end, or give this run another name (name=...)") from None
    except OSError as error:
        raise UserError(f"{path} cannot be locked ({error.strerror})", "set runs_dir to storage with flock") from None


def _make(config: Config) -> None:
    """With whatever is made in it afterwards, it is its owner's alone unless the config says shared."""
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True, mode=0o777 if config.shared else 0o700)
    except OSError as error:
        raise UserError(f"{config.run_dir} cannot be made ({error.strerror})",
                        "set runs_dir to a folder that you may write to") from None
    if not os.access(config.run_dir, os.W_OK | os.X_OK):
        raise UserError(f"{config.run_dir} is not yours to write to", "set runs_dir to a folder that you may write to")
    follow_folder(config.run_dir)


def check_folder(path: Path) -> None:
    """Raises UserError where the path holds something else than a run: nothing there is ever written or deleted."""
    try:
        held = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} is no folder that a run can use ({error.strerror})", "give another name=...") from None
    if held - OWN and RunFolder(path).identity_file.name not in held:
        raise UserError(f"{path} holds other files than a run's, such as {min(held - OWN)}", "give another name=...")


def check_run(config: Config, *, resume: bool) -> None:
    """Makes the checks of open_run without touching the disk. Raises UserError."""
    check_folder(config.run_dir)
    if problem := standing(config, resume=resume):
        raise UserError(*problem)


def standing(config: Config, *, resume: bool) -> tuple[str, str] | None:
    """Says what stands against a start of `config` in its folder and how to fix it; None if nothing does."""
    folder = RunFolder(config.run_dir)
    if folder.known() is None:
        return None
    if changed := differences(load_config(folder.config_file), config):
        return (f"{config.run_dir} belongs to a run with another config: {', '.join(changed)}",
                "use its values to go on with it, or give this run another name (name=...)")
    if not resume:
        return (f"{config.run_dir} holds a run already",
                f"go on with it by `{go_on(config.run_dir)}`, or give this run another name (name=...)")
    return None


def go_on(run_dir: Path) -> str:
    """Returns the command that goes on with a run."""
    return f"gagpo train --resume {shlex.quote(str(run_dir))}"
