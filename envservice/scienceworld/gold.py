"""Checks that the simulator's own solutions win: plays gold paths of every task type like any episode.

    python -m envservice.scienceworld.gold [--variations 1] [--split test] [--tasks boil melt] [--out paths.json]

Paths are played in lower case, as answers are read, and for at most the 200 steps of an episode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.solver import gold_path
from envservice.scienceworld.tasks import COUNTS, PARTS, Part, Place, sample
from envservice.spec import LONGEST
from services.config.env import ScienceTask


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldPath:
    """One gold path and its result."""

    place: Place
    path: list[str]
    steps: int
    """Steps taken: fewer than the path has if it wins early or is longer than an episode."""
    score: int
    won: bool

    @property
    def fits(self) -> bool:
        """Whether an episode is long enough for the path."""
        return len(self.path) <= LONGEST


def play(environment: ScienceworldEnvironment, place: Place, path: list[str]) -> GoldPath:
    """Plays the actions of a path until the episode ends."""
    session = environment.open(place.id)
    now, steps = session.reset(), 0
    for action in path[:LONGEST]:
        now, steps = session.step(action.lower()), steps + 1
        if now.done:
            break
    return GoldPath(place=place, path=path, steps=steps, score=int(now.info["score"]), won=now.won)


def sweep(names: Collection[str], part: Part, count: int) -> Iterator[GoldPath]:
    """Plays some variations of each type with all simplifications. Raises UserError without the simulator or Java,
    EnvFault if it fails."""
    with ScienceworldEnvironment() as environment:
        for place in (place for name in COUNTS if name in names for place in sample(name, part, count)):
            yield play(environment, place, list(gold_path(place.id, environment.simplified(place.name))))


def main() -> None:
    """Prints a line per path, then the paths that did not win."""
    parser = argparse.ArgumentParser(description="gold paths, played")
    parser.add_argument("--variations", type=int, default=1, help="of each type")
    parser.add_argument("--split", choices=PARTS, default="test")
    parser.add_argument("--tasks", nargs="+", choices=get_args(ScienceTask), default=list(COUNTS), metavar="TYPE")
    parser.add_argument("--out", type=Path, default=None, help="task ids and their paths, as JSON")
    args = parser.parse_args()
    played: list[GoldPath] = []
    for one in sweep(args.tasks, args.split, args.variations):
        played.append(one)
        print(f"{one.place.id:70} {len(one.path):3} actions, score {one.score}"
              f"{'' if one.fits else ', longer than an episode'}", flush=True)
    fitting = [one for one in played if one.fits]
    print(f"{sum(one.won for one in fitting)} of {len(fitting)} paths that fit into {LONGEST} steps reach 100; "
          f"{len(played) - len(fitting)} are longer")
    if args.out is not None:
        args.out.write_text(json.dumps({one.place.id: one.path for one in played}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
