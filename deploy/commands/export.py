"""Copies the policy of a checkpoint to a new folder, with its tokenizer, a model card,
generation_config.json with the stop ids, the config by which `gagpo eval OUT` plays it, and adapters that
were trained (adapter/).

example:
  gagpo export runs/alfworld-tiny exported --which best
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

from deploy.commands.arguments import add_own_code, add_run_argument
from deploy.runs.policies import find_run, held_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    add_run_argument(parser)
    parser.add_argument("out", metavar="OUT", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--which", default="latest", metavar="latest|best|STEP",
                        help="which checkpoint (best: by evaluation); default %(default)s")
    parser.add_argument("--push", metavar="OWNER/NAME",
                        help="also upload OUT to this repository of the Hugging Face hub, made private if it is new")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_own_code(parser)


def run(args: argparse.Namespace) -> int:
    """Copies the policy. Raises UserError if there is no such checkpoint, its chat template fails, OUT exists, or the
    copy cannot be pushed."""
    from deploy.launch.checks.chat_template import check_template
    from deploy.runs.configs import light_config
    from deploy.runs.export import export
    from deploy.runs.model_sources import push
    from learner.checkpoints.checkpoint import Checkpoints

    run = find_run(args.run_folder)
    step, model, hold = held_checkpoint(run, args.which)
    with hold or nullcontext():
        Checkpoints(model.parents[1], keep=1).check_weights(step)
        check_template(light_config(run.config_file), folder=model)
        export(run, step, model, args.out)
    exported = {"step": step, "path": str(args.out)} | ({"url": push(args.out, args.push)} if args.push else {})
    print(json.dumps(exported) if args.json else f"step {step} is in {args.out}{' and at ' if args.push else ''}"
          f"{exported.get('url', '')}")
    return 0
