"""Measures for every task type whether a JVM that has played other games gives the same outcomes as a new one.

    python -m envservice.scienceworld.reproducible [--variations 3] [--steps 10]

For each task it takes a random walk over valid actions, seeded by the task's id, and records every outcome and all
valid actions: in two new JVMs, and twice in one JVM that walks all tasks forwards and backwards. With the options of
simulator.py all records of a type are equal, so games can share JVMs and any JVM can rebuild a lost session.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Iterable, Sequence

from envservice.scienceworld.installation import Program, find_program
from envservice.scienceworld.simulator import Simulator
from envservice.scienceworld.tasks import COUNTS, Place, sample
from services.seeds import seed_for

_WAIT = "wait1"
"""Every third action, because plants grow and animals move only as time passes."""


def walk(simulator: Simulator, place: Place, steps: int) -> str:
    """Returns the digest of everything that a random walk shows. Raises JavaError."""
    rng, seen = random.Random(seed_for("scienceworld-walk", place.id)), hashlib.blake2b(digest_size=16)
    simulator.load(place.name, place.variation, "easy")
    shown = [simulator.task(), simulator.step("look around")]
    for step in range(steps):
        valid = simulator.valid_actions()
        shown += [*simulator.objects(), *valid, str(simulator.score())]
        if simulator.completed():
            break
        shown.append(simulator.step(_WAIT if step % 3 == 2 else rng.choice(valid)))
    seen.update("\n".join(shown).encode())
    return seen.hexdigest()


def in_new(program: Program, places: Iterable[Place], steps: int) -> list[str]:
    """Walks each task in a JVM of its own."""
    walks: list[str] = []
    for place in places:
        simulator = Simulator(program)
        try:
            walks.append(walk(simulator, place, steps))
        finally:
            simulator.end()
    return walks


def in_used(program: Program, places: Sequence[Place], steps: int) -> list[tuple[str, str]]:
    """Walks all tasks in one JVM, from the last to the first and back again."""
    simulator = Simulator(program)
    try:
        back = [walk(simulator, place, steps) for place in reversed(places)]
        forth = [walk(simulator, place, steps) for place in places]
        return list(zip(reversed(back), forth, strict=True))
    finally:
        simulator.end()


def main() -> None:
    """Prints a line per task type."""
    parser = argparse.ArgumentParser(description="checks that used JVMs give the same outcomes as new ones")
    parser.add_argument("--variations", type=int, default=3, help="of each type")
    parser.add_argument("--steps", type=int, default=10, help="actions of a walk")
    args = parser.parse_args()
    program = find_program()
    places = [place for name in COUNTS for place in sample(name, "train", args.variations)]
    used = dict(zip(places, in_used(program, places, args.steps), strict=True))
    differing: list[str] = []
    for name in COUNTS:
        mine = [place for place in places if place.name == name]
        first, second = in_new(program, mine, args.steps), in_new(program, mine, args.steps)
        stable = sum(a == b for a, b in zip(first, second, strict=True))
        same = sum(used[place] == (new, new) for place, new in zip(mine, first, strict=True))
        differing += [name] if same < len(mine) else []
        print(f"{name:50} new JVMs agree on {stable} of {len(mine)}, a used one with them on {same}", flush=True)
    print(f"{len(places)} walks of {args.steps} actions; types that read otherwise in a used JVM: "
          f"{', '.join(differing) or 'none'}")


if __name__ == "__main__":
    main()
