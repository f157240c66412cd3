"""`gagpo tasks SPLIT`: lists the tasks of a split, with a digest of their contents."""

from __future__ import annotations

import argparse
import json
import sys

from deploy.commands.arguments import add_env_arguments, env_from
from services.amounts import number_of


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "tasks",
        help="list the tasks of a split",
        description="Prints the task ids of a split, one per line, sorted; their number and the digest over their\n"
        "contents go to stderr. ALFWorld's games are those in ALFWORLD_DATA, or generated ones if it is not\n"
        "set. Splits of official games: train, valid_seen, valid_unseen; train_kept and heldout, into which\n"
        "train is divided by game folder. Splits of generated games: train, valid, heldout.",
        epilog="examples:\n  gagpo tasks heldout | head\n  gagpo tasks valid --config alfworld-tiny",
    )
    parser.add_argument("split", metavar="SPLIT",
                        help="the split, such as train; for a wrong name the error lists all splits")
    add_env_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object: split, digest, tasks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the list. Raises UserError for an unknown split and for missing or broken data."""
    from envservice.checks import tasks_of
    from envservice.registry import open_environment

    environment = open_environment(env_from(args))
    tasks, digest = tasks_of(environment, args.split), environment.digest(args.split)
    if args.json:
        print(json.dumps({"split": args.split, "digest": digest, "tasks": tasks}))
        return 0
    print("\n".join(tasks))
    print(f"{number_of(len(tasks), 'task')} of {environment.name}, digest {digest}", file=sys.stderr)
    return 0
