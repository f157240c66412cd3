"""Starts or resumes a training run from its config, and returns the lines to print at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.training.child_runs import CONTINUE
from services.amounts import number_of
from services.config.tree import Config
from services.telemetry.logs import say

if TYPE_CHECKING:
    from deploy.launch.planning.task_sets import TaskSets


def start(config: Config, *, resume: bool, skip_step: int | None = None, quiet: bool = False) -> list[str]:
    """Checks everything that can be checked cheaply, then runs. Returns the lines to print at the end.

    `quiet`: the progress goes to stderr, and nothing to stdout. Raises UserError for a user's mistake.
    """
    from deploy.launch.checks import preflight
    from deploy.launch.planning.fit import on_cpu, with_gpu
    from deploy.runs.folder import check_run, check_skip, earlier, locked
    from deploy.runs.mirror import claim
    from deploy.runs.wanted import forget_older

    report = partial(print, file=sys.stderr, flush=True)
    config = with_gpu(on_cpu(config, report), report)
    check_run(config, resume=resume)
    task_sets = preflight.check(config, before=earlier(config), report=report)
    with locked(config):
        claim(config, resume=resume)
        check_skip(config, skip_step)  # before stage.json shows the run as active
        forget_older(config)
        return _run(config, task_sets, resume=resume, skip_step=skip_step, quiet=quiet)


@contextmanager
def saying_how_to_continue(command: str) -> Iterator[None]:
    """Prints `command`, which resumes the run, if Ctrl-C, a signal or a fault ends the block early."""
    try:
        yield
    except BaseException:
        say(f"{CONTINUE}{command}")
        raise


def _loss_warning(runs_dir: Path) -> str:
    """Returns a warning if the run's folder will be lost, else "".

    A submitted job starts in Ray's copy of the working directory. Ray deletes this copy some time after the job.
    """
    if runs_dir.is_absolute() or "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        return ""
    return " is in Ray's copy of the working directory, which Ray deletes; set an absolute runs_dir to keep the run"


def _run(config: Config, task_sets: TaskSets, *, resume: bool, skip_step: int | None, quiet: bool) -> list[str]:
    from rich.console import Console

    from deploy.console.progress import ProgressView
    from deploy.launch.planning.warnings import warnings
    from deploy.runs.folder import open_run, resume_command
    from deploy.runs.mirror import Mirroring
    from deploy.runs.stage import StageRecord
    from deploy.training.pipeline import TrainingRun
    from services.telemetry.logs import configure_logs, get_logger

    folder, run_id = open_run(config, games=task_sets.games, resume=resume)
    configure_logs(folder.path, show=None)
    record = get_logger("run").info
    with (saying_how_to_continue(resume_command(folder.path)), StageRecord(folder.stage_file) as stage,
          ProgressView(config.name, config.steps, console=Console(stderr=quiet), record=record,
                       on_stage=stage.set) as progress, Mirroring(config, note=progress.note) as mirroring):
        progress.note(f"environment {task_sets.env_name}: {number_of(len(task_sets.train), 'game')} to train on, "
                      f"{len(task_sets.heldout)} held out")
        for line in warnings(config):
            progress.note(f"warning: {line}")
        progress.note(f"folder {folder.path.absolute()}{_loss_warning(config.runs_dir)}")
        training = TrainingRun(config=config, folder=folder, run=run_id, task_sets=task_sets, progress=progress,
                               check=mirroring.check, skip_step=skip_step)
        return training.execute()
