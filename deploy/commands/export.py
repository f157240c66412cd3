"""`gagpo export`: the policy of a run as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from deploy.commands.arguments import add_own_code
from deploy.runs.policies import find_run, held_checkpoint, run_path


def add_parser(subparsers: Any) -> None:
    """Adds `export`; the command is in `args.run`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "export",
        description="Copies the policy of a checkpoint to a new folder, with its tokenizer, a model card,\n"
        "generation_config.json with the stop ids, the config by which `gagpo eval OUT` plays it, and adapters that\n"
        "were trained (adapter/).",
        epilog="example:\n  gagpo export runs/alfworld-tiny exported --which best",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", metavar="RUN", type=run_path, help="a run's folder, or its name in runs/")
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--which", default="latest", metavar="latest|best|STEP",
                        help="which checkpoint (best: by evaluation); default %(default)s")
    parser.add_argument("--push", metavar="OWNER/NAME",
                        help="also upload OUT to this repository of the Hugging Face hub, made private if it is new")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_own_code(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copies and says what; 0. Raises UserError if there is no such checkpoint, OUT exists, or it cannot be pushed."""
    from deploy.runs.export import export
    from deploy.runs.hub import push
    from learner.checkpoints.checkpoint import Checkpoints

    run = find_run(args.run_folder)
    step, model, hold = held_checkpoint(run, args.which)
    with hold or nullcontext():
        Checkpoints(model.parents[1], keep=1).check_weights(step)
        export(run, step, model, args.out)
    told = {"step": step, "path": str(args.out)} | ({"url": push(args.out, args.push)} if args.push else {})
    print(json.dumps(told) if args.json else f"step {step} is in {args.out}{' and at ' if args.push else ''}"
          f"{told.get('url', '')}")
    return 0
