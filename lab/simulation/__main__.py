"""`python -m lab.simulation`: the speed and the cost of a run that nobody has started."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from deploy.cli import run_guarded
from deploy.commands.arguments import above_zero, add_config_arguments, config_from
from deploy.runs.policies import check_distinct, find_run, run_path
from services.amounts import number_of, rounded
from services.errors import UserError

STEPS = 10


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulation", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Predicts learner steps per hour, idle shares, GPU hours and cost of a config, by simulating the\n"
        "events of its training loop. It starts no process. The times of the parts come from a run of yours at\n"
        "staleness 0, or from a file with times.",
        epilog="examples:\n"
        "  python -m lab.simulation --config alfworld-tiny --from runs/alfworld-tiny rollout.workers=2\n"
        "  python -m lab.simulation --config alfworld-1.5b --figures gpu.json --price 2.5 \\\n"
        "      rollout.workers=64 rollout.gpus=1 learner.ranks=32 learner.gpus=1",
    )
    add_config_arguments(parser)
    parser.add_argument("--from", dest="sources", metavar="RUN", type=run_path, action="append", default=[],
                        help="take the times of this run: its folder, or its name in runs/; may be repeated")
    parser.add_argument("--figures", metavar="FILE", type=Path,
                        help="take the times of this file (lab/simulation/README.md)")
    parser.add_argument("--price", metavar="X", type=above_zero, default=0.0, help="price of one GPU for one hour")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the times under `figures`")
    return parser


def run(args: argparse.Namespace) -> int:
    """Simulates and prints the forecast."""
    from lab.simulation.calibrate import calibrate
    from lab.simulation.figures import read_figures
    from lab.simulation.forecast import forecast

    if bool(args.sources) == bool(args.figures):
        raise UserError("the times of the parts are not given, or twice", "say --from RUN, or --figures FILE")
    check_distinct(args.sources)
    config = config_from(args)
    figures = read_figures(args.figures) if args.figures else calibrate([find_run(one) for one in args.sources])
    found = forecast(config, figures, steps=STEPS, price=args.price)
    if args.json:
        from msgspec import to_builtins

        print(json.dumps({"format": 1, "forecast": asdict(found), "figures": to_builtins(figures)}))
        return 0
    learner, rollout = config.learner, config.rollout
    print(f"{number_of(rollout.workers, 'rollout worker')} of {number_of(rollout.slots, 'slot')}, "
          f"{number_of(learner.ranks, 'learner rank')}, {found.gpus:g} {'GPU' if found.gpus == 1 else 'GPUs'}, "
          f"staleness {learner.staleness}\n"
          f"steps per hour   {rounded(found.steps_per_hour, 4)}\n"
          f"idle             learner {found.learner_idle:.0%}, rollout workers {found.workers_idle:.0%}\n"
          f"busy             environment servers {found.servers_busy:.0%}, Redis {found.store_busy:.0%}, "
          f"controller {found.controller_busy:.0%}\n"
          f"{f'{config.steps} steps':<17}{rounded(found.hours, 4)} hours, {rounded(found.gpu_hours, 4)} GPU hours"
          + (f", cost {rounded(found.cost, 4)}" if args.price else ""))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return run_guarded(lambda: run(build_parser().parse_intermixed_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
