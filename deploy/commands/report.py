"""Writes report.html, one file with everything in it, and figures/*.png: success, length, gradient
norm, entropy, advantages, steps by the size of their state group, and, of one run, what the lost episodes
of its last evaluation share. Of several runs, those that differ in nothing but seed, name and place are
one arm: means with 95% intervals over seeds, and differences to the first arm, paired by seed. A run in
progress is reported as far as it is.

examples:
  gagpo report runs/mine
  gagpo report runs/mine-seed* runs/theirs-seed* --out compared
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deploy.commands.arguments import add_own_code
from deploy.console.plain import printable
from deploy.launch.planning.machine import check_writable
from deploy.runs.policies import check_distinct, run_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("runs", metavar="RUN", nargs="+", type=run_path, help="runs' folders, or names in runs/")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to (default: the run's folder, or ./report)")
    parser.add_argument("--steps", type=_steps, default=(), metavar="N,N",
                        help="show the distribution of advantages at these learner steps, as the paper's figure 5 does "
                             "(default: in the first and last quarter)")
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    add_own_code(parser)


def _steps(text: str) -> tuple[int, ...]:
    """Parses learner steps such as `60,120`. Raises ArgumentTypeError, which argparse reports."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"write learner steps as 60,120, not as {text!r}") from None


def run(args: argparse.Namespace) -> int:
    """Writes the page. Returns 1 if files of the runs are damaged.

    Raises UserError for a folder that holds no run, for a run that is given twice, for a step without an archive, and
    for a place that cannot be written.
    """
    from deploy.report.page import write_report

    check_distinct(args.runs)
    out = args.out or (args.runs[0] if len(args.runs) == 1 else Path("report"))
    if out not in args.runs:
        check_writable(out, str(out), "name a folder that you may write to with --out")
    page, numbers = write_report(args.runs, out, args.steps)
    print(json.dumps(numbers) if args.json else f"report: {page.absolute()}")
    for text in numbers["damaged"]:
        print(f"damaged: {printable(text)}", file=sys.stderr)
    return int(bool(numbers["damaged"]))
