"""`python -m lab.experiments NAME`: many runs or draws, and the table that compares them."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.cli import run_guarded
from deploy.commands.arguments import above_zero, positive
from deploy.launch.planning.machine import check_writable
from deploy.runs.policies import run_path
from services.errors import UserError

EXPERIMENTS = {
    "credit": "lab.experiments.credit.experiment",
    "gradient": "lab.experiments.gradient.experiment",
    "loglinear": "lab.experiments.loglinear.experiment",
    "graph-credit": "lab.experiments.loglinear.experiment",
    "tabular": "lab.experiments.tabular.experiment",
    "trl": "lab.experiments.trl.experiment",
}
"""Name -> module with `run(args) -> int`, which is imported only when it runs."""
READS = {
    "credit": {"config", "arms", "seeds", "report", "json", "confirm", "parallel", "hours", "dry_run", "overrides"},
    "gradient": {"arms", "seeds", "runs", "overrides"},
    "loglinear": {"arms", "seeds", "report", "json", "parallel", "hours"},
    "graph-credit": {"arms", "seeds", "report", "json", "parallel", "hours"},
    "tabular": {"seeds", "report", "json"},
    "trl": {"arms", "seeds", "report", "json"},
}
"""Name -> the options that it reads, beside --out. Others are refused."""
REPORT_READS = {"report", "json"}
"""The options that a report of existing runs reads, beside --out: it shows all runs there."""


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.experiments", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="credit: trains one small agent per arm and seed from one cold start, on the official games, and\n"
        "writes a small record of each run, a table with intervals over seeds, paired differences and figures\n"
        "into --out. A run with a record is not made again, so the same command continues after any interruption.\n"
        "gradient: how near a learner step of each estimator is to the gradient of success, on the same episodes:\n"
        "those of the log-linear policy, or with --runs those of the runs' first learner steps.\n"
        "loglinear: estimators and state keys with a log-linear policy on ALFWorld games, seconds per run.\n"
        "graph-credit: the same with the estimators of the group's graph, to choose the default.\n"
        "tabular: estimators against the exact advantages of small mazes, and how fast a policy learns by them.\n"
        "trl: TRL's GRPO against TRL with our credit, on a tiny game of several turns.",
        epilog="examples:\n  python -m lab.experiments credit --parallel 2 --hours 4\n"
        "  python -m lab.experiments credit --confirm --parallel 2\n"
        "  python -m lab.experiments credit --report\n"
        "  python -m lab.experiments credit --out mine --arms gagpo,gigpo --seeds 3\n"
        "  python -m lab.experiments gradient --runs runs/mine runs/other\n"
        "  python -m lab.experiments loglinear --parallel 2 --hours 1\n"
        "  python -m lab.experiments tabular --seeds 100 --out mine",
    )
    parser.add_argument("name", choices=sorted(EXPERIMENTS), help="the experiment, as described above")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of results (default: lab/experiments/NAME)")
    parser.add_argument("--seeds", type=positive, metavar="N",
                        help="seeds of each arm; gradient: groups of each log-linear policy (default: as planned)")
    parser.add_argument("--report", action="store_true", help="only make the table and figures of existing runs")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--runs", type=run_path, nargs="+", metavar="RUN",
                        help="gradient: folders of runs with one initial policy, whose first learner step is read")
    training = parser.add_argument_group("experiments that train")
    training.add_argument("--config", metavar="FILE", help="config of all runs (default: the shipped one)")
    training.add_argument("--arms", metavar="A,B", help="some of the arms (default: those of the recorded experiment)")
    training.add_argument("--confirm", action="store_true",
                          help="the best arm of the first seeds against GAGPO, on fresh seeds")
    training.add_argument("--parallel", type=positive, default=1, metavar="N", help="runs at once (default: 1)")
    training.add_argument("--hours", type=above_zero, metavar="H", help="start no run after H hours")
    training.add_argument("--dry-run", action="store_true", help="check everything and list the runs")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE",
                        help="set one key of the config of all runs")
    parser.set_defaults(unset={name: parser.get_default(name) for name in set[str]().union(*READS.values())})
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the experiment. Raises UserError for an option that it does not read."""
    for name in (name for name, default in args.unset.items() if getattr(args, name) != default):
        option = "KEY=VALUE" if name == "overrides" else f"--{name.replace('_', '-')}"
        if name not in READS[args.name]:
            raise UserError(f"{option} does nothing in the experiment {args.name}", "leave it out")
        if args.report and name not in REPORT_READS:
            raise UserError(f"{option} does nothing with --report, which shows all runs in --out", "leave it out")
    args.out = args.out or Path(__file__).parent / args.name
    check_writable(args.out, str(args.out), "name a folder that you may write to with --out")
    return importlib.import_module(EXPERIMENTS[args.name]).run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return run_guarded(lambda: run(build_parser().parse_intermixed_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
