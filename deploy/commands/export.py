"""`gagpo export`: the policy of a run as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from deploy.runs.policies import run_path
from services.errors import UserError


def add_parser(subparsers: Any) -> None:
    """Adds `export`; the command is in `args.run`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "export", help="write a run's policy as a Hugging Face folder",
        description="Copies the policy of a checkpoint, with its tokenizer, to a new folder.",
        epilog="example:\n  gagpo export runs/alfworld-tiny exported --which best",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", metavar="RUN", type=run_path, help="a run's folder, or its name in runs/")
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--which", default="latest", metavar="latest|best|STEP",
                        help="which checkpoint (best: by evaluation); default %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copies and says what; 0. Raises UserError where there is no such checkpoint or OUT exists."""
    from learner.checkpoint import EXPORT, Checkpoints

    root = args.run_folder / "checkpoints"
    if not root.is_dir():
        raise UserError(f"{args.run_folder} has no checkpoints", "give a run's folder, runs/<name>")
    checkpoints = Checkpoints(root, keep=1)
    step = _choose(checkpoints, args.which)
    if args.out.exists():
        raise UserError(f"{args.out} exists", "give a folder that does not exist yet")
    checkpoints.check(step)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.out.with_name(f".{args.out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(checkpoints.folder(step) / EXPORT, temporary)
    temporary.rename(args.out)
    print(json.dumps({"step": step, "path": str(args.out)}) if args.json else f"step {step} is in {args.out}")
    return 0


def _choose(checkpoints: Any, which: str) -> int:
    steps: list[int] = checkpoints.steps()
    latest = checkpoints.latest()
    named = {"latest": None if latest is None else latest.step, "best": checkpoints.best()}
    step = named[which] if which in named else int(which) if which.isdecimal() else None
    if step not in steps:
        kept = ", ".join(map(str, steps)) or "none"
        raise UserError(f"there is no checkpoint {which!r}", f"use latest, best or one of the steps kept: {kept}")
    return step
