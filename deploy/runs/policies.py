"""Finds the run or the policy that a command names, and the config to play it by."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from deploy.runs.configs import config_to_play, default_config, load_config
from deploy.runs.folder import RunFolder, is_run
from deploy.runs.gguf import converted, is_gguf
from services.config.tree import Config
from services.errors import UserError

if TYPE_CHECKING:
    from learner.checkpoints.checkpoint import Checkpoints

RUNS = Path("runs")
"""The folder in which a bare name is looked up: the default of runs_dir."""
EXPORTED_CONFIG = "gagpo.yaml"
"""The config in an exported folder, see deploy/runs/export.py. `config.yaml` would make it look like a run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayablePolicy:
    """A model that can be played."""

    folder: Path
    """The Hugging Face folder."""
    title: str
    """Names it for people: which step of which run."""
    name: str
    """Names the weights in the settings of kept trials: the folder, or the run with its step. Never a path."""
    step: int | None
    """Learner steps behind it; None if it is unknown."""
    hold: BinaryIO | None = None
    """Keeps the checkpoint of a run that still trains from being deleted, as long as this object lives."""

    def weights(self) -> str:
        """Returns the digest of the model's files, or "" for a learner step, whose name identifies its weights.
        Any other folder may have been made again. Reads all of the files."""
        return folder_digest(self.folder) if self.step is None else ""


def folder_digest(folder: Path) -> str:
    """Returns the digest of the names and contents of a model's files; "" for a folder without files."""
    files = sorted(path for path in folder.glob("*") if path.is_file())
    parts = [f"{path.name} {hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()}" for path in files]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest() if parts else ""


def find_policy(path: Path, which: str | None = None) -> PlayablePolicy:
    """Returns the policy at `path`: a Hugging Face folder, a GGUF file, or a run's folder, which stands for its trained
    model.

    `which`: latest, best (by evaluation) or a step chooses a checkpoint of a run. None: the trained model, or the
    latest checkpoint of a run that has not finished. Raises UserError if there is no such model.
    """
    run = RunFolder(path)
    if not is_run(path):
        if which is not None:
            raise UserError(f"{path} is no run's folder, so it has no checkpoint {which!r}", "leave --which out")
        folder = converted(path) if is_gguf(path) else path
        policy = PlayablePolicy(folder=folder, title=str(path), name=folder.resolve().name, step=None)
    elif which is None and (run.trained_model / "config.json").exists():
        step = _newest_step(run)
        after = "" if step is None else f" after learner step {step}"
        policy = PlayablePolicy(folder=run.trained_model, title=f"the trained model of {path}{after}",
                                name=_weights_name(run, step), step=step)
    else:
        step, folder, hold = held_checkpoint(run, which or "latest")
        kind = f"the {which or 'latest'} checkpoint" if which in (None, "latest", "best") else "the checkpoint"
        policy = PlayablePolicy(folder=folder, title=f"{kind} of {path}, learner step {step}",
                                name=_weights_name(run, step), step=step, hold=hold)
    if not policy.folder.is_dir():
        raise UserError(f"there is no folder {policy.folder}", "give a Hugging Face folder, or the folder of a run")
    if not (policy.folder / "config.json").exists():
        raise UserError(f"{policy.folder} holds no model", "give a Hugging Face folder, or the folder of a run")
    return policy


def held_checkpoint(run: RunFolder, which: str) -> tuple[int, Path, BinaryIO | None]:
    """As `find_checkpoint`, with the open file that keeps the checkpoint from being deleted; None if it has no model.

    If the newest checkpoint is deleted meanwhile, the next one is taken.
    """
    from learner.checkpoints.checkpoint import hold

    step, folder = find_checkpoint(run, which)
    while True:
        try:
            return step, folder, hold(folder.parent)
        except FileNotFoundError:
            before, (step, folder) = step, find_checkpoint(run, which)
            if step == before:  # it is there, and has no model
                return step, folder, None


def find_checkpoint(run: RunFolder, which: str) -> tuple[int, Path]:
    """Returns step and Hugging Face folder of a checkpoint. `which`: latest, best or a step. Raises UserError if there
    is none."""
    from learner.checkpoints.checkpoint import EXPORT

    checkpoints = _checkpoints(run)
    if checkpoints is None:
        raise UserError(f"{run.path} has no checkpoints", "give a run after its first checkpoint")
    steps, latest = checkpoints.weights_steps(), checkpoints.latest()
    named = {"latest": None if latest is None else latest.step, "best": checkpoints.best()}
    step = named[which] if which in named else int(which) if which.isdecimal() else None
    if step not in steps:
        names = ", ".join(name for name, its in named.items() if its in steps)
        raise UserError(f"there is no checkpoint {which!r}",
                        f"use {names and f'{names} or '}one of the steps kept: {', '.join(map(str, steps))}")
    return step, checkpoints.weights_folder(step) / EXPORT


def _checkpoints(run: RunFolder) -> Checkpoints | None:
    """Returns the checkpoints and weights of a run, or None before the first. Training makes their folder when it
    starts."""
    from learner.checkpoints.checkpoint import Checkpoints

    root = run.path / "checkpoints"
    return kept if root.is_dir() and (kept := Checkpoints(root, keep=1)).weights_steps() else None


def _weights_name(run: RunFolder, step: int | None) -> str:
    name = run.path.resolve().name
    return name if step is None else f"{name} step {step}"


def _newest_step(run: RunFolder) -> int | None:
    checkpoints = _checkpoints(run)
    newest = None if checkpoints is None else checkpoints.latest()
    return None if newest is None else newest.step


def resolve(path: Path, config_file: str | None, settings: Mapping[str, object | None],
            overrides: Sequence[str] = (), *, which: str | None = None) -> tuple[Config, PlayablePolicy]:
    """Returns the config to play by, and the policy that `path` names.

    The config is `config_file`, or else that of the run, of the exported folder or of the run that the folder lies in.
    Settings with a value are laid over it, then the overrides. Raises UserError if there is no model or no config.
    """
    policy = find_policy(path, which)
    config = _config_near(path)
    if config_file is None and config is None:
        raise UserError(f"{path} has no config next to it", "say how to play by --config")
    laid = [f"{key}={value}" for key, value in settings.items() if value is not None]
    read = config_to_play if config_file is None else load_config
    return read(config_file or str(config), [*laid, *overrides, *_plays(policy)]), policy


def resolve_or_default(path: Path, config_file: str | None, overrides: Sequence[str] = (), *,
                       which: str | None = None) -> tuple[Config, PlayablePolicy]:
    """As `resolve`, but a folder with no config next to it gets the default one. Raises UserError without a model."""
    if config_file is not None or _config_near(path) is not None:
        return resolve(path, config_file, {}, overrides, which=which)
    policy = find_policy(path, which)
    return default_config([*overrides, *_plays(policy)]), policy


def check_asked_by_prompt(config: Config, path: Path) -> None:
    """Raises UserError if an agent program asks the model of `path`: it was never trained on env.prompt."""
    if config.agent.name is not None:
        raise UserError(f"{path} is asked by the agent program {config.agent.name}, and not by env.prompt",
                        "watch its episodes by `gagpo explore`, play it by `gagpo eval` or `gagpo serve-agent`, or set "
                        "agent.name=null")


def _plays(policy: PlayablePolicy) -> list[str]:
    return [f"model.path={policy.folder.resolve()}", "sft.enabled=false"]


def _config_near(path: Path) -> Path | None:
    places = (path / "config.yaml", path / EXPORTED_CONFIG, path.parent / "config.yaml")
    return next((place for place in places if place.exists()), None)


def run_path(text: str) -> Path:
    """Returns the folder that a command line names: a path, or the bare name of a run in ./runs.

    A run or a model at the path takes precedence over a run of that name, and any other folder does not: an
    environment's source and its run may have one name.
    """
    path, named = Path(text), RUNS / text
    if is_run(path) or (path / "config.json").exists():
        return path
    return named if is_run(named) or (named.exists() and not path.exists()) else path


def check_distinct(paths: Sequence[Path]) -> None:
    """Raises UserError if two paths lead to one run."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a run is given twice", "name each run once")


def find_run(path: Path) -> RunFolder:
    """Returns the folder of an existing run. Raises UserError that names the nearest run, or lists those that exist."""
    if is_run(path):
        return RunFolder(path)
    if path.is_file():
        raise UserError(f"{path} is a file, and no folder of a run", "`gagpo credit` reads logs of episodes")
    runs = _runs_in(path) or _runs_in(RUNS)  # a sweep's folder has its runs
    near = difflib.get_close_matches(path.name, runs, n=1)
    if not runs:
        raise UserError(f"{path} is not the folder of a run, and {RUNS.absolute()} has none",
                        "give the path of a run, or start in the folder that holds runs/")
    raise UserError(f"{path} is not the folder of a run", f"did you mean {runs[near[0]]}?" if near else
                    f"give one of {', '.join(map(str, runs.values()))}")


def find_begun(path: Path) -> RunFolder:
    """As `find_run`. Raises UserError also for a run that has not begun: its start was interrupted, or is not done."""
    folder = find_run(path)
    if not folder.identity_file.exists():
        raise UserError(f"{folder.path} has no {folder.identity_file.name}: its run has not begun",
                        "try again once it trains")
    return folder


def _runs_in(folder: Path) -> dict[str, Path]:
    """Returns name -> folder of the runs that lie in a folder."""
    folders = [file.parent for file in sorted(folder.glob("*/config.yaml"))]
    return {path.name: path for path in folders if is_run(path)}
