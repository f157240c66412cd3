"""`python -m lab.bench NAME`: measures our parts against their references, in one run on one machine."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from deploy.cli import run_guarded
from deploy.commands.arguments import above_zero
from deploy.console.plain import EVERY_S, StatusLines
from deploy.training.child_runs import ChildFailed, failed
from lab.bench.figures import Figure
from lab.bench.parts import Parts
from services.amounts import rounded
from services.errors import UserError

BENCHES = {
    "alfworld": "lab.bench.alfworld",
    "control": "lab.bench.control",
    "credit": "lab.bench.credit",
    "env-service": "lab.bench.env_service",
    "explore": "lab.bench.explore",
    "fan-out": "lab.bench.fanout",
    "learner": "lab.bench.learner",
    "load": "lab.bench.load",
    "loop": "lab.bench.loop",
    "rollout": "lab.bench.rollout",
    "simulation": "lab.simulation.check",
    "soak": "lab.bench.soak",
    "store": "lab.bench.store",
    "trl": "lab.bench.trl",
    "webshop": "lab.bench.webshop",
    "weights": "lab.bench.weights",
}
"""Name -> module with `run(report) -> list[Figure]`. A module is imported only when its bench runs, because benches
import heavy packages. OPTIONS has the further parameters of a `run`."""
OPTIONS = {"load": ("minutes",), "soak": ("minutes", "sessions")}

EVEN = ("env-service", "load", "soak")
"""Benches with similar parts (rounds, minutes), for which a rate predicts the time left."""


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures a part against its reference in one run. Model, sizes and concurrency are fixed,\n"
        "so that results can be compared from commit to commit.",
        epilog="examples:\n  python -m lab.bench alfworld --json\n"
        "  python -m lab.bench soak --minutes 5 --sessions alfworld=50,webshop=10",
    )
    parser.add_argument("name", choices=sorted(BENCHES), help="the part to measure (lab/records/reproduction.md)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--minutes", type=above_zero, metavar="N", help="length of the soak or the load (default: 30)")
    parser.add_argument("--sessions", metavar="NAME=NUMBER,...", help="sessions of each environment in the soak")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the bench and prints its results."""
    options = {key: value for key in ("minutes", "sessions") if (value := getattr(args, key)) is not None}
    for key in options.keys() - set(OPTIONS.get(args.name, ())):
        owners = " and ".join(name for name, keys in OPTIONS.items() if key in keys)
        raise UserError(f"the bench {args.name} has no --{key}", f"leave it out: only {owners} can take it")
    console = Console(stderr=True)
    every_s = 1.0 if console.is_terminal else EVERY_S
    with StatusLines(console) as lines, Parts(lines, f"bench {args.name}", every_s=every_s) as parts:
        def report(what: str, done: float, total: float) -> None:
            if args.name in EVEN:
                lines.at(f"bench {args.name}", done, total, "parts", doing=what)
            else:
                parts.at(what, done, total)

        try:
            figures = importlib.import_module(BENCHES[args.name]).run(report, **options)
        except ChildFailed as error:
            return failed(error)
    if args.json:
        print(json.dumps({"format": 1, "bench": args.name, "figures": [asdict(figure) for figure in figures]}))
    else:
        Console().print(table(args.name, figures))
    return 0


def table(name: str, figures: Sequence[Figure]) -> Table:
    """Returns the results as a table. If a figure has no reference, its cells are empty."""
    out = Table(title=f"python -m lab.bench {name}", box=None, title_justify="left")
    out.add_column("figure")
    for head in ("value", "unit", "reference", "ratio"):
        out.add_column(head, justify="left" if head == "unit" else "right")
    for figure in figures:
        reference = "" if figure.reference is None else rounded(figure.reference, 4)
        ratio = "" if figure.ratio is None else f"{figure.ratio:,.2f}x"
        out.add_row(figure.name, rounded(figure.value, 4), figure.unit, reference, ratio)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return run_guarded(lambda: run(build_parser().parse_intermixed_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
