"""Runs sampler, loop and learner with random weights of Qwen2.5-1.5B's shape on one GPU, without
the network, and prints what passed, what failed and the figures. Exits with 1 if a line failed.

examples:
  gagpo selftest --gpu
  gagpo selftest --gpu --part engine --json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.launch.planning.gpu_pool import visible
from services.errors import UserError

if TYPE_CHECKING:
    from deploy.selftest.sizes import Size
    from learner.selftest.table import Line

PARTS = ("engine", "loop", "learner")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("--gpu", action="store_true", required=True, help="use the first GPU of this machine")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end instead of lines")


def run(args: argparse.Namespace) -> int:
    """Runs the parts and prints their lines; 1 if one failed."""
    if visible() is None:
        raise UserError("the self-test needs an NVIDIA GPU, and this machine has none",
                        "run it on a machine whose `nvidia-smi` lists a GPU")
    from deploy.selftest.sizes import GPU

    parts = PARTS if args.part is None else (args.part,)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="gagpo-selftest-") as folder:
        for line in run_parts(parts, GPU, Path(folder), lambda what: print(f"self-test: {what}", file=sys.stderr)):
            lines.append(line)
            if not args.json:
                print(line, flush=True)  # at once: a fault of CUDA may end this process
    if args.json:
        print(json.dumps({"format": 1, "lines": [asdict(line) for line in lines]}))
    return int(any(line.passed is False for line in lines))


def run_parts(parts: tuple[str, ...], size: Size, folder: Path, report: Callable[[str], object]) -> Iterator[Line]:
    """Yields the lines of the parts as they are measured. `size`: GPU or CPU of deploy/selftest/sizes.py.

    A part that raises is a line with its reason, and the other parts run all the same.
    """
    from deploy.selftest.engine_part import engine_part
    from deploy.selftest.loop_part import loop_part
    from deploy.selftest.sizes import make_model
    from learner.selftest.table import attempt

    report("a model of random weights")
    model = make_model(size, folder / "model")
    if "engine" in parts:
        yield from attempt("engine", lambda: engine_part(size, model, report))
    if "loop" in parts:
        yield from attempt("loop", lambda: loop_part(size, model, folder, report))
    if "learner" in parts:  # the last one: it keeps its GPU until this process ends
        from learner.selftest.run import run as learner_part

        report("the learner")
        (folder / "learner").mkdir()
        yield from attempt("learner", lambda: learner_part(folder / "learner"))
