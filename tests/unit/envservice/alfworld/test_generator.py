"""Generated games: a pure function of (split, index), realistic in size, disjoint, and never won at reset."""

import hashlib
import json
import os
import re
import subprocess
import sys
from statistics import mean

import pytest

from envservice.alfworld import generator
from envservice.alfworld.engine import OwnSession
from envservice.alfworld.game import parse_game
from envservice.alfworld.generator import GENERATED_SPLITS, TYPES, generate, parse_task_id, task_id, task_type
from envservice.alfworld.generator_pddl import names
from envservice.alfworld.generator_rooms import room

SAMPLE = [("train", index) for index in range(0, 300)] + [("heldout", index) for index in range(0, 120)]


@pytest.fixture(scope="module")
def games() -> dict[tuple[str, int], dict]:
    return {(split, index): generate(split, index) for split, index in SAMPLE}


def digest(game: dict) -> str:
    return hashlib.blake2b(json.dumps(game, sort_keys=True).encode(), digest_size=16).hexdigest()


def test_games_do_not_depend_on_the_hash_seed(games):
    code = (
        "import hashlib, json\n"
        "from envservice.alfworld.generator import generate\n"
        "for index in range(12):\n"
        "    text = json.dumps(generate('train', index), sort_keys=True)\n"
        "    print(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())\n"
    )
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                                check=True, timeout=60)
        assert result.stdout.split() == [digest(games["train", index]) for index in range(12)]


def test_generated_games_have_the_recorded_digest(games):
    """A change here changes every generated task: panels, digests and recorded results with it."""
    together = "".join(digest(games[key]) for key in [*SAMPLE[:12], *SAMPLE[300:312]])
    assert hashlib.blake2b(together.encode(), digest_size=8).hexdigest() == "c39365cbfc81bdbf"


READS = """
import sys
from pathlib import Path
opened = set()
sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event == "open" else None)
from envservice.alfworld import generator
for index in range(12):
    generator.generate("heldout", index)
root = Path(generator.__file__).parents[2]
modules = {Path(m.__file__) for m in sys.modules.values() if getattr(m, "__file__", None)}
data = {Path(name) for name in opened if not name.endswith((".py", ".pyc"))}
own = {file for file in modules | data if file.is_relative_to(root) and not file.is_relative_to(sys.prefix)}
print(sorted(str(file) for file in own - set(generator._MADE_BY) if file.name != "__init__.py"))
"""


def test_the_digest_is_over_every_file_that_making_games_reads():
    """Else two servers with other games could give the same one."""
    result = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_each_of_the_files_is_in_the_digest(tmp_path, monkeypatch):
    before = generator.made_by.__wrapped__()
    for place, file in enumerate(generator._MADE_BY):
        other = tmp_path / file.name
        other.write_bytes(file.read_bytes() + b" ")
        files = (*generator._MADE_BY[:place], other, *generator._MADE_BY[place + 1:])
        with monkeypatch.context() as patch:
            patch.setattr(generator, "_MADE_BY", files)
            assert generator.made_by.__wrapped__() != before, file.name
    assert generator.made_by() == before


def test_ids_carry_the_type_and_round_trip():
    assert task_id("valid", 7) == "alfworld-gen/valid/look-0007"
    assert parse_task_id("alfworld-gen/valid/look-0007") == ("valid", 7)
    assert [task_type(index) for index in range(7)] == [*TYPES, "pick"]


@pytest.mark.parametrize("bad", [
    "alfworld-gen/valid/pick-0007", "alfworld-gen/valid/look-7", "alfworld/valid/look-0007", "",
    "alfworld-gen/other/look-0007", "alfworld-gen/valid/look-0145", "alfworld-gen", "alfworld-gen/valid/look-000७",
])
def test_ids_of_no_game_are_refused(bad):
    with pytest.raises(KeyError):
        parse_task_id(bad)


def test_an_index_out_of_range_is_refused():
    with pytest.raises(KeyError):
        generate("valid", GENERATED_SPLITS["valid"])


def test_held_out_is_large_enough_for_two_types():
    assert sum(task_type(index) in ("pick", "look") for index in range(GENERATED_SPLITS["heldout"])) >= 250


def test_all_six_types_with_their_own_goal_sentences(games):
    starts = {
        "pick": ("put a ", "put some "),
        "look": ("look at ", "examine the "),
        "clean": ("put a clean ", "clean some "),
        "heat": ("put a hot ", "heat some "),
        "cool": ("put a cool ", "cool some "),
        "two": ("put two ", "find two "),
    }
    seen = set()
    for (_, index), game in games.items():
        sentence = re.search(r"Your task is to: ([^.\"]*)\.", game["grammar"])
        assert sentence
        assert sentence[1].startswith(starts[task_type(index)])
        seen |= {start for start in starts[task_type(index)] if sentence[1].startswith(start)}
    assert seen == {start for pair in starts.values() for start in pair}


def test_contents_are_disjoint(games):
    assert len({digest(game) for game in games.values()}) == len(games)
    assert len({game["pddl_problem"].split(":objects")[1] for game in games.values()}) == len(games)


def test_sizes_are_those_of_the_official_games(games):
    """Official training games: 23.5 receptacles, 32 objects in them, 6.0 actions."""
    starts = [game["pddl_problem"].split("(:goal")[0] for game in games.values()]
    assert 20 <= mean(start.count("(receptacleType ") for start in starts) <= 27
    assert 28 <= mean(start.count("(inReceptacle ") for start in starts) <= 36
    assert 5.5 <= mean(len(game["walkthrough"]) for game in games.values()) <= 7


def test_pick_and_two_goals_are_not_met_at_reset(games):
    for (_, index), game in games.items():
        if task_type(index) not in ("pick", "two"):
            continue
        goal = game["pddl_problem"].split("(:goal")[1]
        obj = re.search(r"\(objectType \?\w+ (\w+)Type\)", goal)
        target = re.search(r"\(receptacleType \?r (\w+)Type\)", goal)
        assert obj
        assert target
        stem = target[1].removesuffix("Basin")
        assert not re.search(rf"\(inReceptacle {obj[1]}_bar_\S+ {stem}_bar_", game["pddl_problem"])


def test_every_walkthrough_wins_with_its_last_command(games):
    for game in games.values():
        session = OwnSession(parse_game(game))
        outcome = session.reset()
        assert not outcome.won
        for command in game["walkthrough"]:
            assert not outcome.done
            assert command in outcome.admissible_actions
            outcome = session.step(command)
        assert outcome.won


def test_rooms_keep_their_layout_and_differ():
    assert room("kitchen", 3) is room("kitchen", 3)
    assert len({tuple(each.id for each in room("kitchen", number).receptacles) for number in range(1, 31)}) == 30


def test_displayed_numbers_run_downwards_over_sorted_ids():
    ids = ["Drawer_bar__plus_01", "Drawer_bar__minus_02", "Sink_bar__plus_00_bar_SinkBasin", "Sink_bar__plus_00"]
    assert names(ids) == {
        "Drawer_bar__minus_02": "drawer 2",
        "Drawer_bar__plus_01": "drawer 1",
        "Sink_bar__plus_00_bar_SinkBasin": "sinkbasin 1",
        "Sink_bar__plus_00": "sink 1",
    }
