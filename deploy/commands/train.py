"""`gagpo train`: a whole run, from the cold start to the report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.commands.arguments import add_config_arguments, config_from
from deploy.runs.configs import load_config
from deploy.runs.policies import find_run, run_path
from deploy.training.sweep import SWEEPS
from services.config.tree import Config
from services.errors import UserError

if TYPE_CHECKING:
    from deploy.launch.task_sets import TaskSets
    from deploy.training.sweep import Variant


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "train",
        help="train an agent",
        description="Trains an agent: cold start, reinforcement learning, held-out games, report.\n"
        "Starts a private Redis, Ray and environment servers unless the config or RAY_ADDRESS names others,\n"
        "and stops what it started.",
        epilog="examples:\n  gagpo train --config alfworld-tiny --dry-run\n"
        "  gagpo train --config alfworld-tiny steps=50 name=longer\n"
        "  gagpo train --resume runs/longer\n"
        "  gagpo train --config alfworld-small name=ablations --sweep ablations\n"
        "  ray job submit --working-dir . -- gagpo train --config deploy/configs/alfworld-tiny.yaml",
    )
    add_config_arguments(parser, required=False)
    parser.add_argument("--resume", nargs="?", const=True, default=False, metavar="RUN",
                        help="go on with this run, by the config in its folder; with --config and without RUN: "
                        "go on with the run of that name, or start it")
    parser.add_argument("--skip-step", type=int, metavar="S",
                        help="with --resume: leave out the groups of learner step S, which cannot be trained")
    parser.add_argument("--sweep", choices=tuple(SWEEPS), metavar="NAME",
                        help="one run per variant from one cold start, then one table: `ablations`, the paper's")
    parser.add_argument("--dry-run", action="store_true", help="validate and print the plan; start nothing")
    parser.add_argument("--json", action="store_true", help="print the plan or the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked cheaply, then runs."""
    from deploy.launch import plan, preflight
    from deploy.runs.folder import check_run, locked

    config = _config(args)
    resume = bool(args.resume)
    if args.skip_step is not None and (args.sweep or not resume):
        raise UserError("--skip-step leaves out a step of one interrupted run", "give --resume with it, and no --sweep")
    if args.sweep:
        return _sweep(config, args)
    if not args.dry_run:
        check_run(config, resume=resume)
    task_sets = preflight.check(config)
    if args.dry_run:
        print(json.dumps(plan.as_dict(config)) if args.json else plan.describe(config, resume=resume))
        return 0
    with locked(config):
        lines = _train(config, task_sets, args)
    print(json.dumps({"format": 1, "run": str(config.run_dir), "lines": lines}) if args.json else "\n".join(lines))
    return 0


def _config(args: argparse.Namespace) -> Config:
    """Returns the config of --config, or that of the run which --resume names. Raises UserError."""
    if isinstance(args.resume, str) and "=" in args.resume:  # `--resume learner.lr=1e-4`: an override and no run
        args.overrides, args.resume = [args.resume, *args.overrides], True
    if not isinstance(args.resume, str):
        if args.config is None:
            raise UserError("neither --config nor a run is given", "say --config FILE, or --resume RUN")
        return config_from(args)
    if args.config is not None or args.sweep:
        raise UserError(f"--resume {args.resume} has its config in its folder",
                        "leave --config and --sweep out, or leave the run's name out")
    return _resumed(run_path(args.resume), args.overrides)


def _resumed(path: Path, overrides: list[str]) -> Config:
    """Returns the config of the run at `path` under overrides. The run may have been moved since it began."""
    path = path if path.name else path.resolve()
    config = load_config(find_run(path).config_file, [*overrides, f"runs_dir={json.dumps(str(path.parent))}"])
    if config.name != path.name:
        raise UserError(f"{path} is the folder of a run named {config.name}",
                        f"rename the folder to {config.name}, and leave name= out")
    return config


@contextmanager
def _saying_how_to_go_on(command: str) -> Iterator[None]:
    """Prints the command that goes on with the run when anything ends it early: Ctrl-C, a kill or a fault."""
    try:
        yield
    except BaseException:
        print(f"to go on: {command}", file=sys.stderr)
        raise


def _train(config: Config, task_sets: TaskSets, args: argparse.Namespace) -> list[str]:
    from rich.console import Console

    from deploy.console.progress import ProgressView
    from deploy.launch.idle_keys import idle_keys
    from deploy.runs.folder import go_on, open_run
    from deploy.runs.stage import StageRecord
    from deploy.training.pipeline import TrainingRun
    from services.telemetry.logs import configure_logs, get_logger

    folder, run_id = open_run(config, games=task_sets.games, resume=bool(args.resume))
    configure_logs(folder.path, show=None)
    record = get_logger("run").info
    with (_saying_how_to_go_on(go_on(folder.path)), StageRecord(folder.stage_file) as stage,
          ProgressView(config.name, config.steps, console=Console(stderr=args.json), record=record,
                       tell=stage.tell) as progress):
        progress.note(f"environment {task_sets.env_name}: {len(task_sets.train)} games to train on, "
                      f"{len(task_sets.heldout)} held out")
        for line in idle_keys(config):
            progress.note(f"warning: {line}")
        training = TrainingRun(config=config, folder=folder, run=run_id, task_sets=task_sets, progress=progress,
                               skip_step=args.skip_step)
        return training.execute()


def _sweep(config: Config, args: argparse.Namespace) -> int:
    """Every variant is checked before the first one starts."""
    from deploy.launch import plan, preflight
    from deploy.training import sweep
    from deploy.training.child_runs import ChildFailed, failed

    variants = SWEEPS[args.sweep]
    made = sweep.configs(config, variants)
    preflight.check(config)
    if args.dry_run:
        # The common cold start is not there yet, so its model is planned as the config describes it.
        planned = {name: one.model_copy(update={"model": config.model}) for name, one in made.items()}
        texts = [f"variant {v.title}{_laid(v)}\n{plan.describe(planned[v.name])}" for v in variants]
        plans = {name: plan.as_dict(one) for name, one in planned.items()}
        print(json.dumps({"format": 1, "variants": plans}) if args.json else "\n\n".join(texts))
        return 0
    try:
        with _saying_how_to_go_on("the same command with --resume"):
            lines = sweep.run_sweep(config, variants, resume=bool(args.resume), quiet=args.json)
    except ChildFailed as error:
        return failed(error)
    print((config.run_dir / "sweep.json").read_text().strip() if args.json else "\n".join(sweep.as_text(lines)))
    return 0


def _laid(variant: Variant) -> str:
    return "".join(f", {key}={value}" for key, value in variant.overrides.items())
