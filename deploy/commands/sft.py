"""`gagpo sft`: trains a model on demonstrations by a scripted player or from a file. Wiring only."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from deploy.commands.arguments import add_config_arguments, config_from
from deploy.console.plain import StatusLines
from deploy.launch.planning.machine import check_writable
from deploy.runs.configs import lay_over
from deploy.runs.hub import with_local_model
from deploy.training.cold_start import cold_start
from services.errors import UserError


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "sft",
        help="make a policy to start from, by imitating a scripted player",
        description="Plays demonstrations on the training games, makes a tokenizer and a small model from scratch\n"
        "(or takes model.path), trains, and writes a Hugging Face folder with sft.json. If sft.file names\n"
        "trajectories, these are imitated instead. A model at model.path is trained by the learner's ranks if\n"
        "the config gives the learner GPUs or several ranks.",
        epilog="example:\n  gagpo sft --config alfworld-tiny sft.minutes=3 --out models/cold",
    )
    add_config_arguments(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new folder for the model")
    parser.add_argument("--continue-from", type=Path, metavar="MODEL", help="train this model further")
    parser.add_argument("--json", action="store_true", help="print sft.json at the end")
    parser.set_defaults(run=run)


def _empty(out: Path) -> None:
    """Removes what was written of a model before its process died. Raises UserError for a folder that holds more."""
    from learner.cold_start.states import folder_of, kept

    if not out.exists() or not any(out.iterdir()):
        return
    if (out / "sft.json").exists() or not kept(folder_of(out)):
        raise UserError(f"{out} is not empty", "give a new folder with --out")
    shutil.rmtree(out)


def run(args: argparse.Namespace) -> int:
    """Trains and prints where the model is."""
    from deploy.launch.checks.chat_template import check_template
    from deploy.launch.checks.gpu_checks import check_ranks
    from deploy.launch.checks.model_folder import check_model, check_weights
    from deploy.launch.checks.preflight import check_scratch
    from deploy.launch.planning.warnings import unread_answers

    config = with_local_model(config_from(args))
    check_writable(args.out, f"--out {args.out}", "give another folder")
    _empty(args.out)
    if args.continue_from is not None and not (args.continue_from / "config.json").exists():
        raise UserError(f"{args.continue_from} holds no model", "give a Hugging Face folder")
    if (begins := args.continue_from or config.model.path) is None:
        check_scratch(config)
    else:
        check_model(begins)
        check_weights(begins)
        check_template(lay_over(config, {"model.path": begins}))
    if config.imitates_on_ranks:
        check_ranks(config)
    with StatusLines(Console(stderr=args.json)) as lines:
        for line in unread_answers(config):
            lines.note(f"warning: {line}")
        out = cold_start(config, args.out, minutes=config.sft.minutes, epochs=config.sft.epochs,
                         continue_from=args.continue_from, report=lines.note, passing=lines.passing)
    print((out / "sft.json").read_text().strip() if args.json else f"model: {out}")
    return 0
