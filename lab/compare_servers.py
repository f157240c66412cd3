"""`python -m lab.compare_servers OTHER_TREE [PAIRS]`: this tree's environment server against that of another tree.

    git worktree add ../before cf8d35c~1 && python -m lab.compare_servers ../before

A server of each tree runs. Both play the walks of `python -m lab.bench env-service` in turns, and take turns at being
the first, so other work of the machine affects both. Prints for each way the median over the pairs of
(speed of this tree) / (speed of the other), by wall time and by the server's CPU time, with the 95% interval of the
median (bootstrap).
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS = 120
DRAWS = 2000
Server = tuple[subprocess.Popen[str], str]


@contextmanager
def serving(tree: Path) -> Iterator[Server]:
    """An environment server of a tree, and its address."""
    environ = {name: value for name, value in os.environ.items() if name not in ("ALFWORLD_DATA", "GAGPO_ENV_TOKEN")}
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--config", "alfworld-tiny", "--port", "0"]
    with subprocess.Popen(command, cwd=tree, env=environ | {"PYTHONPATH": str(tree)}, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace") as process:
        try:
            assert process.stdout is not None
            found = re.search(r" on (http\S+)", process.stdout.readline())
            if found is None:
                raise SystemExit(f"error: the server of {tree} ended at its start; run serve-env there to see why")
            yield process, found[1]
        finally:
            process.terminate()
            process.wait(30)


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """The CPU time that a server has used."""
    import psutil

    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


async def measure(this: Server, other: Server, pairs: int) -> dict[str, list[float]]:
    """The ratios of all pairs after the first, by way and clock."""
    from lab.bench import env_service

    walks = env_service.make_walks()
    ways = {"one step a request": env_service._one_by_one, "batched": env_service._batched}
    found: dict[str, list[float]] = {f"{way}, {clock}": [] for way in ways for clock in ("wall", "CPU")}
    for number in range(pairs + 1):
        for way, play in ways.items():
            seconds: dict[int, tuple[float, float]] = {}
            for process, url in (this, other) if number % 2 else (other, this):
                before = cpu_seconds(process)
                wall = await play(walks, url, f"{way}/{number}")
                seconds[process.pid] = wall, cpu_seconds(process) - before
            for place, clock in enumerate(("wall", "CPU")):
                mine, its = seconds[this[0].pid][place], seconds[other[0].pid][place]
                if number and mine:
                    found[f"{way}, {clock}"].append(its / mine)
    return found


def main(arguments: list[str]) -> int:
    """Prints the four ratios."""
    if not 1 <= len(arguments) <= 2 or not (Path(arguments[0]) / "envservice").is_dir():
        print("error: name a tree of gagpo's: python -m lab.compare_servers OTHER_TREE [PAIRS]", file=sys.stderr)
        return 2
    pairs = int(arguments[1]) if len(arguments) == 2 else PAIRS
    with serving(ROOT) as this, serving(Path(arguments[0]).resolve()) as other:
        found = asyncio.run(measure(this, other, pairs))
    for name, ratios in found.items():
        medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
        low, high = medians[DRAWS // 40], medians[-DRAWS // 40 - 1]
        print(f"{name:<24} {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]  {len(ratios)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
