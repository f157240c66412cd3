"""`gagpo selftest`: shows on a GPU that sampler, loop and learner work there."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.launch.cards import visible
from services.errors import UserError

if TYPE_CHECKING:
    from deploy.bench.selftest.sizes import Size
    from learner.selftest.table import Line

PARTS = ("engine", "loop", "learner")
VERDICTS = {True: ("pass", "green"), False: ("fail", "red"), None: ("-", "default")}


def add_parser(subparsers: argparse._SubParsersAction) -> None:  # pyright: ignore[reportPrivateUsage]
    """Registers the command."""
    parser = subparsers.add_parser(
        "selftest",
        help="show that a GPU machine works",
        description="Runs sampler, loop and learner with random weights of Qwen2.5-1.5B's shape on one GPU, without\n"
        "the network, and prints what passed, what failed and the figures. Exits with 1 if a line failed.",
        epilog="examples:\n  gagpo selftest --gpu\n  gagpo selftest --gpu --part engine --json",
    )
    parser.add_argument("--gpu", action="store_true", required=True, help="use the first GPU of this machine")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the parts and prints their lines; 1 if one failed."""
    if visible() is None:
        raise UserError("the self-test needs an NVIDIA GPU, and this machine has none",
                        "run it on a machine whose `nvidia-smi` lists a GPU")
    from deploy.bench.selftest.sizes import GPU

    console = Console(stderr=True)
    parts = PARTS if args.part is None else (args.part,)
    with tempfile.TemporaryDirectory(prefix="gagpo-selftest-") as folder:
        lines = run_parts(parts, GPU, Path(folder), lambda what: console.print(f"self-test: {what}"))
    if args.json:
        print(json.dumps({"format": 1, "lines": [asdict(line) for line in lines]}))
    else:
        Console().print(table(lines))
    return int(any(line.passed is False for line in lines))


def run_parts(parts: tuple[str, ...], size: Size, folder: Path, tell: Callable[[str], object]) -> list[Line]:
    """Returns the lines of the parts. `size`: GPU or CPU of deploy/bench/selftest/sizes.py."""
    from deploy.bench.selftest.engine_part import engine_part
    from deploy.bench.selftest.loop_part import loop_part
    from deploy.bench.selftest.sizes import make_model

    tell("a model of random weights")
    model = make_model(size, folder / "model")
    lines = engine_part(size, model, tell) if "engine" in parts else []
    lines += loop_part(size, model, folder, tell) if "loop" in parts else []
    if "learner" in parts:  # the last one: it keeps its GPU until this process ends
        from learner.selftest.run import run as learner_part

        tell("the learner")
        (folder / "learner").mkdir()
        lines += learner_part(folder / "learner")
    return lines


def table(lines: list[Line]) -> Table:
    """Returns the lines for people."""
    out = Table(title="gagpo selftest", box=None, title_justify="left")
    for head in ("line", "verdict", "found", "aim"):
        out.add_column(head)
    for line in lines:
        out.add_row(line.name, Text(*VERDICTS[line.passed]), line.found, line.aim)
    return out
