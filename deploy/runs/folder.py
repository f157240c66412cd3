"""The folder of a run: its parts, its run's identity, its owner, and whether a config may continue in it."""

from __future__ import annotations

import hashlib
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

from deploy.runs.configs import light_config, load_config
from deploy.runs.model_sources import origin
from learner.checkpoints.checkpoint import MIRROR, Checkpoints, steps_in
from services.config.file import WEIGHT, as_yaml, dump_config, flatten
from services.config.keys import LIST
from services.config.tree import Config
from services.errors import UserError
from services.files import Damaged, follow_folder, is_draft, lock_alone, read_json, write_whole
from services.process.own_code import file_of
from services.process.packages import program

FORMAT = 1
LOCK = ".lock"
FETCHING = ".fetching"
"""Folder in a run's folder into which deploy/runs/mirror.py fetches the run."""
OWN = frozenset({LOCK, FETCHING, MIRROR, "config.yaml", "log.jsonl", "evaluations.jsonl", "wanted.json"})
"""Files that may be in a folder without run.json: its start was interrupted, a sweep gave it evaluations, or `gagpo
scale` came before it."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Content of run.json: the run that owns the folder."""

    format: int = FORMAT
    run: str = ""
    games: str = ""
    model: str = ""
    """`OWNER/NAME@REVISION` of the model that it started from, if that is a model of the Hugging Face hub."""
    code: dict[str, str] = {}
    """Maps the modules of an own estimator and an own state key to the digests of their files at the start."""


class _Entry:
    """A file or folder in a run's folder, as an attribute of RunFolder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _owner: object = None) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths below runs/<name>/."""

    path: Path

    config_file = _Entry("config.yaml")
    identity_file = _Entry("run.json")
    metrics = _Entry("metrics.jsonl")
    evaluations = _Entry("evaluations.jsonl")
    ledger = _Entry("ledger.jsonl")
    """One line per learner step: its manifest from the store."""
    summary = _Entry("summary.json")
    """The final table, which exists once the run has finished."""
    stage_file = _Entry("stage.json")
    """The driver's current stage; see deploy/runs/stage.py."""
    wanted = _Entry("wanted.json")
    """How many processes of each role are wanted; written by `gagpo scale` and by the run's autoscaling."""
    cold_model = _Entry("model-cold-start")
    """The policy from which RL starts, if the run made it."""
    more_model = _Entry("model-more-cold-start")
    """The cold start that was trained for as many more minutes as RL took."""
    trained_model = _Entry("model")
    """The policy after the last learner step."""

    @property
    def targets(self) -> Path:
        """Path of the file that lists the endpoints for Prometheus (file_sd). It exists while the run is active.

        It is next to the run's folder, because Prometheus allows patterns for file names but not for folders.
        """
        return targets_folder(self.path.parent) / f"{self.path.name}.json"

    def identity(self) -> Identity | None:
        """Returns run.json, or None for a fresh folder. Raises Damaged if it cannot be read and the folder has results.

        A damaged run.json without results counts as fresh: a full disk at the start of a run can leave one.
        """
        try:
            return read_json(self.identity_file, Identity)
        except FileNotFoundError:
            return None
        except Damaged:
            if _held(self.path) - OWN - {self.identity_file.name}:
                raise
            return None


def targets_folder(runs_dir: Path) -> Path:
    """Returns the folder with the endpoint files of all runs below `runs_dir`."""
    return runs_dir / ".monitor" / "targets"


def open_run(config: Config, *, games: str, resume: bool) -> tuple[RunFolder, str]:
    """Returns the run's folder, made if need be, and the run's id: its name with a nonce, the prefix of its Redis keys.

    `games` names the games and the engine, so that one folder never mixes results on other games or other rules.
    Raises UserError if the folder belongs to another config or to other games, or if it holds a run and `resume` is
    false.
    """
    folder = RunFolder(config.run_dir)
    check_run(config, resume=resume, games=games)
    identity = folder.identity()
    _make(config)
    # The config first, so that a folder with an identity always has a config.
    dump_config(config, folder.config_file)
    if identity is None:
        identity = Identity(run=f"{config.name}-{uuid.uuid4().hex[:8]}", games=games,
                            model=origin(config.model.path), code=code_of(config))
        write_whole(folder.identity_file, json.dumps(msgspec.structs.asdict(identity), indent=1) + "\n")
    return folder, identity.run


@contextmanager
def locked(config: Config) -> Iterator[None]:
    """Locks the run's folder during the block, and makes the folder if needed. A second process is refused before it
    writes anything.

    If this process dies, the lock ends with it. Raises UserError if another process holds it.
    """
    folder = RunFolder(config.run_dir)
    check_folder(folder.path)
    _make(config)
    handle = os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        lock_alone(handle, folder.path, elsewhere="set runs_dir to storage with flock", taken=UserError(
            f"another process works in {folder.path}", "wait for its end, or give this run another name (name=...)"))
        yield
    finally:
        os.close(handle)


def _make(config: Config) -> None:
    """Makes the folder. Only its owner may read it and its files, unless the config sets `shared`."""
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True, mode=0o777 if config.shared else 0o700)
    except OSError as error:
        raise UserError(f"{config.run_dir} cannot be made ({error.strerror})",
                        "set runs_dir to a folder that you may write to") from None
    if not os.access(config.run_dir, os.W_OK | os.X_OK):
        raise UserError(f"{config.run_dir} is not yours to write to", "set runs_dir to a folder that you may write to")
    follow_folder(config.run_dir)


def _held(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if not is_draft(entry.name)}


def _others(path: Path) -> set[str]:
    """Returns the names in a folder that show that it holds something else than a run. A run's folder has none, even if
    the fetch of the run was interrupted."""
    held = _held(path)
    return set() if held & {RunFolder(path).identity_file.name, FETCHING} else held - OWN


def is_run(path: Path) -> bool:
    """Whether the path is a run's folder, and no other one with a config.yaml, such as an environment's source."""
    return RunFolder(path).config_file.exists() and not _others(path)


def check_folder(path: Path) -> None:
    """Raises UserError if the path holds something other than a run, so that its files are never changed or deleted."""
    try:
        others = _others(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} is not a folder that a run can use ({error.strerror})",
                        "give another name=... or runs_dir=...") from None
    if others:
        raise UserError(f"{path} holds other files than a run's, such as {min(others)}", "give another name=...")


def check_run(config: Config, *, resume: bool, games: str | None = None) -> None:
    """Makes the checks of open_run without writing to the disk. `games`: None compares no games. Raises UserError."""
    check_folder(config.run_dir)
    if problem := standing(config, resume=resume, games=games):
        raise UserError(*problem)


def check_skip(config: Config, step: int | None) -> None:
    """Checks before a run continues that its learner may still leave out `step`, if it is given. Raises UserError."""
    root = config.run_dir / "checkpoints"
    if step is None or not steps_in(root):  # Checkpoints would make the folder, and a dry run makes none
        return
    newest = Checkpoints(root, config.checkpoint.keep).latest()
    if newest is not None and newest.step >= config.steps:
        raise UserError(f"step {step} cannot be skipped: the learner of {config.run_dir} has finished",
                        "leave --skip-step out")
    if newest is not None and newest.step >= step:
        raise UserError(f"step {step} cannot be skipped: the steps up to {newest.step} are in a checkpoint",
                        "leave --skip-step out, or name a later step")


def earlier(config: Config) -> Config | None:
    """Returns the config of the run in the folder of `config`; None if there is no run. Raises UserError if both name
    the same own code, and it does not accept the options of the run."""
    folder = RunFolder(config.run_dir)
    if folder.identity() is None:
        return None
    recorded = light_config(folder.config_file)
    theirs, ours = recorded.learner.credit, config.learner.credit
    if (theirs.estimator, theirs.state_key) != (ours.estimator, ours.state_key):
        return recorded  # another run's own code may be gone, and is not needed to see that the runs differ
    try:
        return load_config(folder.config_file)
    except UserError as error:
        raise UserError(f"{folder.config_file}: {error.what}", error.fix) from None


def standing(config: Config, *, resume: bool, games: str | None = None) -> tuple[str, str] | None:
    """Returns what prevents a start of `config` in its folder and how to fix it, or None. See open_run for `games`."""
    identity, before = RunFolder(config.run_dir).identity(), earlier(config)
    if identity is None or before is None:
        return None
    if changed := differences(before, config):
        return (f"{config.run_dir} belongs to a run with another config: {', '.join(changed)}",
                "use its values to continue it, or give this run another name (name=...)")
    if not resume:
        return (f"{config.run_dir} holds a run already",
                f"continue it by `{resume_command(config.run_dir)}`, or give this run another name (name=...)")
    if config.steps < (taken := max(steps_in(config.run_dir / "checkpoints"), default=0)):
        return (f"steps={config.steps} is fewer than the {taken} that {config.run_dir} has taken",
                f"steps counts from the beginning: give {taken + config.steps} for {config.steps} more")
    if games is not None and identity.games != games:
        return (f"{config.run_dir} was played on {identity.games}, and now there is {games}",
                "give this run another name (name=...), or the data and settings that it had")
    return None


def resume_command(run_dir: Path) -> str:
    """Returns the command that continues a run."""
    return f"{program()} train --resume {shlex.quote(str(run_dir))}"


def relocate(path: Path, old_root: Path, new_root: Path) -> Path:
    """Returns where `path` is if the folder of runs `old_root` was moved to `new_root`. A path that exists, or was
    outside of `old_root`, stays as it is.

    `old_root` may be relative, as a config may have it, also for an absolute path: /old/runs/mine is in `runs`.
    """
    if path.exists():
        return path
    parts, folder = path.parts, old_root.parts
    starts = [0] if old_root.is_absolute() or not path.is_absolute() else range(len(parts) - len(folder), 0, -1)
    for start in starts:
        if folder and parts[start:start + len(folder)] == folder:
            return new_root.joinpath(*parts[start + len(folder):])
    return path


MAY_CHANGE = re.compile(
    r"(runs_dir|shared|steps|hardware|model\.download|eval\..*|checkpoint\..*|storage\..*|redis\.(?!bodies).*|ray\..*|placement\..*|autoscale\..*"
    r"|supervision\..*|metrics\..*|weights\..*|prompting\..*|agent\.seconds"
    r"|env\.(data|servers|cpus|urls|token_file|max_sessions|memory_gb|recycle_hours|recycle_gb|call_seconds|outage_seconds)"
    r"|rollout\.(workers|slots|cpus|gpus|tensor_parallel|sleep|gpu_memory|kv_cache_gb|threads|(start|sample|retry|update)_seconds)"
    r"|learner\.(ranks|fewest_ranks|cpus|gpus|threads|checkpointing|compile|offload|token_budget|step_attempts|overdue_s|wait_s|collective_s))")
"""Keys that may differ on --resume: how far, where and how patiently a run goes, never what it learns from or how."""


def differences(before: Config, now: Config) -> list[str]:
    """Returns a text with both values for each differing key that decides what a run learns. The critic's keys decide
    nothing without one.

    An option of `learner.credit` that one config lacks is left out: it does nothing there, or belongs to another
    estimator or state key, which is named itself.
    """
    from learner.credit.registry import estimator

    theirs, mine = compared(before, now)
    if not estimator(now.learner.credit.estimator).needs_critic:
        mine = {key: value for key, value in mine.items() if not key.startswith("learner.critic.")}
    return [f"{key} is {as_yaml(theirs[key])} there and {as_yaml(mine[key])} here" for key in mine
            if key in theirs and mine[key] != theirs[key] and not MAY_CHANGE.fullmatch(key)]


def compared(before: Config, now: Config) -> tuple[dict[str, object], dict[str, object]]:
    """Returns both configs by dotted key. The paths of one model or teacher are made equal.

    It is one if both paths lead to the same folder, also after it was moved with the runs. A model of the hub is one if
    the commits are equal, wherever the cache is; its keys are left out.
    """
    one = {LIST: [], WEIGHT: 1.0}  # keys that only a list of environments has
    theirs, mine = one | flatten(before), one | flatten(now)
    for key, there, here in (("model.path", before.model.path, now.model.path),
                             ("learner.distill.teacher", before.learner.distill.teacher, now.learner.distill.teacher)):
        if there is not None and here is not None and here.absolute() in (
                there.absolute(), relocate(there, before.runs_dir, now.runs_dir.absolute())):
            theirs[key] = mine[key]
    if (commit := origin(now.model.path)) and commit == origin(before.model.path):
        for keys in (theirs, mine):
            del keys["model.path"], keys["model.revision"]
    return theirs, mine


def code_of(config: Config) -> dict[str, str]:
    """Maps the module of an own estimator and of an own state key to the digest of its file. Modules that these import
    are left out."""
    credit = config.learner.credit
    modules = {name.partition(":")[0] for name in (credit.estimator, credit.state_key) if ":" in name}
    return {module: hashlib.blake2b(file_of(module).read_bytes(), digest_size=16).hexdigest()
            for module in sorted(modules)}


def is_own(run: RunFolder, *others: Path) -> bool:
    """Returns whether the run's folder, its config and the `others` belong to this user and only they can write them.

    A path that is missing, or cannot be examined, counts as somebody else's.
    """
    try:
        facts = [path.stat() for path in (run.path, run.config_file, *others)]
    except OSError:
        return False
    return all(fact.st_uid == os.geteuid() and not fact.st_mode & 0o022 for fact in facts)


def withheld(key: str, run: RunFolder) -> str:
    """Returns the line that says that a command does not use the file of `key`, because the run is not this user's own.
    """
    return f"note: the file of {key} is not used, because others can write to {run.path} or what it refers to"
