"""`gagpo train`: a whole run, from the cold start to the report."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from deploy.commands.arguments import add_config_arguments, config_from
from deploy.training.sweep import SWEEPS
from services.config.tree import Config

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
        "  gagpo train --config alfworld-small name=ablations --sweep ablations\n"
        "  ray job submit --working-dir . -- gagpo train --config deploy/configs/alfworld-tiny.yaml",
    )
    add_config_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the run of this name, or start it")
    parser.add_argument("--sweep", choices=tuple(SWEEPS), metavar="NAME",
                        help="one run per variant from one cold start, then one table: `ablations`, the paper's")
    parser.add_argument("--dry-run", action="store_true", help="validate and print the plan; start nothing")
    parser.add_argument("--json", action="store_true", help="print the plan or the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked cheaply, then runs."""
    from deploy.launch import plan, preflight
    from deploy.runs.folder import check_run

    config = config_from(args)
    if args.sweep:
        return _sweep(config, args)
    check_run(config, resume=args.resume)
    panels = preflight.check(config)
    if args.dry_run:
        print(json.dumps(plan.as_dict(config)) if args.json else plan.describe(config))
        return 0
    lines = _train(config, panels, resume=args.resume, quiet=args.json)
    print(json.dumps({"format": 1, "run": str(config.run_dir), "lines": lines}) if args.json else "\n".join(lines))
    return 0


def _train(config: Config, panels: TaskSets, *, resume: bool, quiet: bool) -> list[str]:
    from rich.console import Console

    from deploy.console.progress import ProgressView
    from deploy.runs.folder import open_run
    from deploy.training.pipeline import TrainingRun
    from services.telemetry.logs import configure_logs, get_logger

    folder, run_id = open_run(config, games=panels.games, resume=resume)
    configure_logs(folder.path, show=None)
    record = get_logger("run").info
    with ProgressView(config.name, config.steps, console=Console(stderr=quiet), record=record) as progress:
        progress.note(f"environment {panels.env_name}: {len(panels.train)} games to train on, "
                      f"{len(panels.heldout)} held out")
        training = TrainingRun(config=config, folder=folder, run=run_id, panels=panels, progress=progress)
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
        lines = sweep.run_sweep(config, variants, resume=args.resume, quiet=args.json)
    except ChildFailed as error:
        return failed(error)
    print((config.run_dir / "sweep.json").read_text().strip() if args.json else "\n".join(sweep.as_text(lines)))
    return 0


def _laid(variant: Variant) -> str:
    return "".join(f", {key}={value}" for key, value in variant.overrides.items())
