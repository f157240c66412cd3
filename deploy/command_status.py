"""`gagpo status`: how a run stands, from its folder."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from deploy.run_folder import RunFolder
from services.config_file import load_config
from services.errors import UserError
from services.metrics import read_evaluations, read_metrics


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "status",
        help="show how a run stands",
        description="Shows the last learner step and evaluation of a run, and how long ago they were.",
        epilog="example:\n  gagpo status runs/alfworld-tiny",
    )
    parser.add_argument("run_folder", metavar="RUN", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the status."""
    status = read_status(args.run_folder)
    if args.json:
        print(json.dumps({"format": 1, **status}))
        return 0
    print(f"{status['run']}: {status['state']}, step {status['step']} of {status['steps']}")
    if status["seconds_since_step"] is not None:
        print(f"  last step {status['seconds_since_step']:.0f} s ago, success {status['success_rate']:.1%}")
    for line in status["evaluations"]:
        print(f"  {line['label']} T={line['temperature']:g}: {line['success_rate']:.1%} "
              f"[{line['success_low']:.1%}, {line['success_high']:.1%}] on {line['tasks']} games")
    return 0


def read_status(path: Path) -> dict[str, Any]:
    """What the run's folder says. Raises UserError where it is none."""
    folder = RunFolder(path)
    if not folder.config_file.exists():
        raise UserError(f"{path} is no run's folder", "give runs/<name>")
    config = load_config(folder.config_file)
    metrics, evaluations = read_metrics(folder.metrics), read_evaluations(folder.evaluations)
    last = metrics[-1] if metrics else None
    shown = ("label", "temperature", "success_rate", "success_low", "success_high", "tasks")
    return {
        "run": str(path),
        "state": "finished" if folder.summary.exists() else "not finished",
        "step": last["step"] if last else 0,
        "steps": config.steps,
        "seconds_since_step": time.time() - last["time"] if last else None,
        "success_rate": last["success_rate"] if last else None,
        "evaluations": [{key: e[key] for key in shown} for e in evaluations],
    }
