"""Checks of ScienceWorld's simulator that our use depends on: its solutions win, and a used JVM plays as a new one.

    python -m lab.scienceworld gold [--variations 1] [--split test] [--tasks boil melt] [--out paths.json]
    python -m lab.scienceworld reproducible [--variations 3] [--steps 10]

`gold` plays gold paths of every task type like any episode: in lower case, as answers are read, and for at most the 200
steps of an episode.

`reproducible` takes for each task a random walk over valid actions, seeded by the task's id, and records every outcome
and all valid actions: in two new JVMs, and twice in one JVM that walks all tasks forwards and backwards. With the
options of envservice/scienceworld/simulator.py all records of a type are equal, so games can share JVMs and any JVM can
rebuild a lost session.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.simulator import Program, Simulator, find_program
from envservice.scienceworld.tasks import COUNTS, PARTS, Part, Place, sample
from envservice.scienceworld.teacher import gold_path
from envservice.spec import LONGEST
from services.config.env import ScienceTask
from services.seeds import seed_for

_WAIT = "wait1"
"""Every third action of a walk, because plants grow and animals move only as time passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldPath:
    """One gold path and its result."""

    place: Place
    path: list[str]
    score: int
    won: bool

    @property
    def fits(self) -> bool:
        """Whether an episode is long enough for the path."""
        return len(self.path) <= LONGEST


def play(environment: ScienceworldEnvironment, place: Place, path: list[str]) -> GoldPath:
    """Plays the actions of a path until the episode ends."""
    session = environment.open(place.id)
    now = session.reset()
    for action in path[:LONGEST]:
        now = session.step(action.lower())
        if now.done:
            break
    return GoldPath(place=place, path=path, score=int(now.info["score"]), won=now.won)


def sweep(names: Collection[str], part: Part, count: int) -> Iterator[GoldPath]:
    """Plays some variations of each type with all simplifications. Raises UserError without the simulator or Java,
    EnvFault if it fails."""
    with ScienceworldEnvironment() as environment:
        for place in (place for name in COUNTS if name in names for place in sample(name, part, count)):
            yield play(environment, place, list(gold_path(place.id, environment.simplified(place.name))))


def check_gold(args: argparse.Namespace) -> None:
    """Prints a line per path, then the number of paths that win."""
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


def walk(simulator: Simulator, place: Place, steps: int) -> str:
    """Returns the digest of everything that a random walk shows. Raises JavaError."""
    rng = random.Random(seed_for("scienceworld-walk", place.id))
    simulator.load(place.name, place.variation, "easy")
    shown = [simulator.task(), simulator.step("look around")]
    for step in range(steps):
        valid = simulator.valid_actions()
        shown += [*simulator.objects(), *valid, str(simulator.score())]
        if simulator.completed():
            break
        shown.append(simulator.step(_WAIT if step % 3 == 2 else rng.choice(valid)))
    return hashlib.blake2b("\n".join(shown).encode(), digest_size=16).hexdigest()


def walk_in_new(program: Program, places: Iterable[Place], steps: int) -> list[str]:
    """Walks each task in a JVM of its own."""
    walks: list[str] = []
    for place in places:
        simulator = Simulator(program)
        try:
            walks.append(walk(simulator, place, steps))
        finally:
            simulator.end()
    return walks


def walk_in_used(program: Program, places: Sequence[Place], steps: int) -> list[tuple[str, str]]:
    """Walks all tasks in one JVM, from the last to the first and back again."""
    simulator = Simulator(program)
    try:
        back = [walk(simulator, place, steps) for place in reversed(places)]
        forth = [walk(simulator, place, steps) for place in places]
        return list(zip(reversed(back), forth, strict=True))
    finally:
        simulator.end()


def check_reproducible(args: argparse.Namespace) -> None:
    """Prints a line per task type, then the types whose walks differ."""
    program = find_program()
    places = [place for name in COUNTS for place in sample(name, "train", args.variations)]
    used = dict(zip(places, walk_in_used(program, places, args.steps), strict=True))
    differing: list[str] = []
    for name in COUNTS:
        own = [place for place in places if place.name == name]
        first, second = walk_in_new(program, own, args.steps), walk_in_new(program, own, args.steps)
        stable = sum(a == b for a, b in zip(first, second, strict=True))
        same = sum(used[place] == (new, new) for place, new in zip(own, first, strict=True))
        differing += [name] if same < len(own) else []
        print(f"{name:50} new JVMs agree on {stable} of {len(own)}, a used one with them on {same}", flush=True)
    print(f"{len(places)} walks of {args.steps} actions; types that read otherwise in a used JVM: "
          f"{', '.join(differing) or 'none'}")


def main() -> None:
    """Runs one of the two checks."""
    parser = argparse.ArgumentParser(description="checks ScienceWorld's simulator")
    checks = parser.add_subparsers(required=True)
    gold = checks.add_parser("gold", help="plays the simulator's own solutions")
    gold.set_defaults(check=check_gold)
    gold.add_argument("--variations", type=int, default=1, help="of each type")
    gold.add_argument("--split", choices=PARTS, default="test")
    gold.add_argument("--tasks", nargs="+", choices=get_args(ScienceTask), default=list(COUNTS), metavar="TYPE")
    gold.add_argument("--out", type=Path, default=None, help="task ids and their paths, as JSON")
    reproducible = checks.add_parser("reproducible", help="compares used JVMs with new ones")
    reproducible.set_defaults(check=check_reproducible)
    reproducible.add_argument("--variations", type=int, default=3, help="of each type")
    reproducible.add_argument("--steps", type=int, default=10, help="actions of a walk")
    args = parser.parse_args()
    args.check(args)


if __name__ == "__main__":
    main()
