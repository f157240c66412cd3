"""Our engine against the one that ships with alfworld and textworld, record by record.

A record is all that a reset or step gives: observation, admissible commands in order, reward, done, won. Every game
is played twice: along its walkthrough to the win, and on a random walk that prefers handling things to looking around.
Between the steps of generated games comes every kind of bad input. What is equal on single records is equal on any
sequence of them, as both engines keep no state but the game's.
"""

import importlib.util
import itertools
import json
import os
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import pytest

from envservice.alfworld.engine import OwnSession
from envservice.alfworld.game import TASK_TYPES, parse_game
from envservice.alfworld.generator import generate
from envservice.alfworld.tasks import OfficialGames, task_type
from envservice.alfworld.textworld_engine import TextworldSession

installed = importlib.util.find_spec("textworld") is not None and importlib.util.find_spec("alfworld") is not None
pytestmark = [
    pytest.mark.skipif(not installed, reason="the reference engine is not installed (extra `alfworld`)"),
    pytest.mark.timeout(600),
]
DATA = os.environ.get("ALFWORLD_DATA")
needs_official_games = pytest.mark.skipif(not DATA, reason="ALFWORLD_DATA is not set")

BAD_INPUT = {
    "unknown verb": lambda good, past: "dance",
    "wrong number": lambda good, past: f"{good} 99",
    "wrong case": lambda good, past: good.title(),
    "double spaces": lambda good, past: good.replace(" ", "  ") if " " in good else "go  to",
    "spaces around": lambda good, past: f"  {good}\t\n",
    "other white space around": lambda good, past: f"\u00a0{good}\u2003",
    "empty": lambda good, past: "",
    "argument to help": lambda good, past: "help me",
    "valid before": lambda good, past: past[0] if past else "look",
    "very long": lambda good, past: good * 3000,
    "two lines": lambda good, past: f"{good}\nlook",
    "braces": lambda good, past: "take {o} from {r}",
    "not ascii": lambda good, past: good.replace("o", "ö"),
}
STEPS = 10
"""Length of a random walk."""
HANDLING = ("take", "move", "open", "close", "clean", "heat", "cool", "use", "slice")


@pytest.fixture(scope="module", autouse=True)
def _quick_grammar() -> Iterator[None]:
    """Lets the reference parse each text of its grammar once: it parses the same texts in every step."""
    from textworld.envs.pddl import textgen

    parsed = lru_cache(maxsize=None)(textgen._parse_and_convert)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textgen, "_parse_and_convert", lambda *texts, **options: deepcopy(parsed(*texts, **options)))
        yield


class Pair:
    """Both engines on one game, and the differences between them."""

    def __init__(self, data):
        self.own = OwnSession(parse_game(data))
        self.reference = TextworldSession(data)
        self.records = 0
        self.differing = []
        self.seen = set()
        self.past = []

    def reset(self):
        self.past = []
        return self._compare(None, self.own.reset(), self.reference.reset())

    def step(self, action):
        outcome = self._compare(action, self.own.step(action), self.reference.step(action))
        if outcome.observation != "Nothing happens.":
            self.past.append(action)
            self.seen.add(action.split()[0])
        return outcome

    def _compare(self, action, own, reference):
        self.records += 1
        if own != reference:
            self.differing.append((action, own, reference))
        return reference


def play(data, *, seed, steps, bad_input=True):
    """Plays the walkthrough, then a random walk, with every kind of bad input in between if asked."""
    pair, rng, bad = Pair(data), random.Random(seed), itertools.cycle(BAD_INPUT.values())
    outcome = pair.reset()
    for command in data["walkthrough"]:
        if bad_input:
            pair.step(next(bad)(command, pair.past))
        outcome = pair.step(command)
    assert outcome.won
    outcome = pair.reset()
    for index in range(steps):
        commands = outcome.admissible_actions
        handling = [command for command in commands if command.startswith(HANDLING)]
        command = rng.choice(handling if handling and rng.random() < 0.6 else commands)
        outcome = pair.step(next(bad)(command, pair.past) if bad_input and index % 4 == 3 else command)
    return pair


def check(pairs, *, records):
    differing = [each for pair in pairs for each in pair.differing]
    assert not differing, f"{len(differing)} records differ, the first: {differing[0]}"
    assert sum(pair.records for pair in pairs) >= records
    return set.union(*(pair.seen for pair in pairs))


def test_generated_games_of_all_types():
    pairs = [play(generate("heldout", 6 * n + n), seed=n, steps=STEPS) for n in range(len(TASK_TYPES))]
    seen = check(pairs, records=120)
    assert seen >= {"go", "take", "move", "open", "clean", "heat", "cool", "use", "look", "help"}


def test_games_as_the_installed_alfworld_generates_them():
    """Its domain cleans at sink basins only, and its grammar has the help text in another place."""
    import alfworld

    data = generate("train", 2)
    package = Path(alfworld.__file__).parent / "data"
    goal = re.search(r"Your task is to: ([^\"]*)\.\"", data["grammar"])[1]
    grammar = (package / "alfred.twl2").read_text().replace("UNKNOWN GOAL", goal)
    data |= {"pddl_domain": (package / "alfred.pddl").read_text(), "grammar": grammar}
    assert grammar != generate("train", 2)["grammar"]
    pair = play(data, seed=0, steps=6)
    pair.step("help")
    check([pair], records=20)


@pytest.mark.long
@pytest.mark.official
@needs_official_games
def test_official_games_of_half_the_types():
    """Each game takes the reference engine some seconds."""
    games = OfficialGames(Path(DATA))
    rng = random.Random(0)
    tasks = [rng.choice([t for t in games.tasks("valid_seen") if task_type(t) == kind]) for kind in TASK_TYPES[::2]]
    pairs = [play(json.loads(games.content(task)), seed=n, steps=STEPS, bad_input=False)
             for n, task in enumerate(tasks)]
    check(pairs, records=45)


@pytest.mark.official
@needs_official_games
def test_every_official_walkthrough_wins_with_its_last_command():
    games = OfficialGames(Path(DATA))
    tasks = [task for split in games.splits() if split not in ("heldout", "train_kept") for task in games.tasks(split)]
    assert len(tasks) >= 3693
    failed = []
    for task in tasks:
        data = json.loads(games.content(task))
        session = OwnSession(parse_game(data))
        outcomes = [session.reset(), *map(session.step, data["walkthrough"])]
        if [outcome.won for outcome in outcomes] != [False] * len(data["walkthrough"]) + [True]:
            failed.append(task)
    assert not failed


def test_corners_that_ordinary_games_rarely_reach():
    """The agent starts at a receptacle; things are cool, open, in two places, or in each other at the start."""
    data = generate("train", 8)
    game = parse_game(data)
    near = next(rs for rs in game.receptacles_at.values() if sum(fits(game, r) for r in rs) > 1)
    table = next(r for r in game.receptacles if r not in near and not game.has("openable", r) and fits(game, r))
    target, beside = [r for r in near if fits(game, r)][:2]
    knife = next(o for o, kind in game.object_type.items() if kind == "knifetype")
    tomato, other = sorted(game.traits["sliceable"])[:2]
    facts = [
        f"(inReceptacle {knife} {target})",
        f"(inReceptacle {knife} {table})",
        f"(inReceptacle {tomato} {target})",
        f"(objectAtLocation {other} {game.location_of[target]})",
        f"(isCool {tomato})",
        f"(isReceptacleObject {other})",
        f"(inReceptacleObject {tomato} {other})",
        *(f"(opened {r})" for r in near if game.has("openable", r)),
    ]
    problem = data["pddl_problem"].replace("(:init", "(:init " + "\n".join(facts))
    start = re.search(r"\(atLocation agent1 (\S+)\)", problem)[1]
    problem = problem.replace(f"(atLocation agent1 {start})", f"(atLocation agent1 {game.location_of[target]})")
    pair = Pair({**data, "pddl_problem": problem})

    names = [game.names[each] for each in (knife, tomato, other, target, beside, table)]
    knife, tomato, other, target, beside, table = names
    first = pair.reset()
    assert "You are facing the" in first.observation
    script = f"""take {knife} from {target}; slice {tomato} with {knife}; slice {other} with {knife}; examine {knife}
        look; move {knife} to {target}; take {knife} from {target}; inventory; move {knife} to {beside}; look
        take {knife} from {beside}; look; go to {table}; move {knife} to {table}; take {knife} from {table}
        go to {target}; move {knife} to {target}; take {tomato} from {target}; examine {tomato}; look
        go to {table}; move {tomato} to {table}; take {tomato} from {table}; look"""
    commands = [command.strip() for command in re.split("[;\n]", script)]
    seen = [pair.step(command).observation for command in commands]
    check([pair], records=24)
    assert "Nothing happens." not in seen
    assert any(f"Next to it, you see a {knife}" in text for text in seen)
    assert "This is a cool" in pair.own.step(f"examine {tomato}").observation


def fits(game, receptacle):
    """Whether a knife can be put there."""
    return (game.receptacle_type[receptacle], "knifetype") in game.can_contain
