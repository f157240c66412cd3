"""The engine's own rules on generated games, and the shipped engine's adapter. tests/parity/alfworld compares them."""

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from envservice.alfworld import textworld_engine
from envservice.alfworld.engine import OwnSession, WorldState, apply_command
from envservice.alfworld.environment import open_environment
from envservice.alfworld.game import TASK_TYPES, UnknownGame, UnknownGoal, load_game, parse_game, parse_goal
from envservice.alfworld.generator import generate
from services.config.env import AlfworldSection, EnvSection
from services.errors import UserError

BY_TYPE = {kind: generate("train", index) for index, kind in enumerate(TASK_TYPES)}


def play(data, actions):
    session = OwnSession(parse_game(data))
    return [session.reset(), *(session.step(action) for action in actions)]


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_a_walkthrough_wins_with_its_last_command_and_not_before(kind):
    data = BY_TYPE[kind]
    assert parse_game(data).goal.type == kind
    outcomes = play(data, data["walkthrough"])
    assert [(o.won, o.done, o.reward) for o in outcomes[:-1]] == [(False, False, 0.0)] * len(data["walkthrough"])
    assert (outcomes[-1].won, outcomes[-1].done, outcomes[-1].reward) == (True, True, 1.0)


@pytest.mark.parametrize("kind", ["clean", "heat", "cool"])
def test_the_object_unprocessed_does_not_win(kind):
    data = BY_TYPE[kind]
    plain = [command for command in data["walkthrough"] if not command.startswith(kind)]
    assert not play(data, plain)[-1].won


def test_one_of_two_objects_does_not_win():
    data = BY_TYPE["two"]
    first = next(i for i, command in enumerate(data["walkthrough"]) if command.startswith("move"))
    assert not play(data, data["walkthrough"][: first + 1])[-1].won


def test_the_lamp_may_be_lit_before_or_after_the_object_is_taken():
    for index in range(1, 600, 6):
        data = generate("train", index)
        *way, use = data["walkthrough"]
        lamp_first = [way[-1], use, *way[:-1], way[-1]]
        if play(data, data["walkthrough"])[-1].won and way[-1].startswith("go to"):
            assert play(data, lamp_first)[-1].won
            return
    pytest.fail("no generated game keeps object and lamp apart")


@pytest.mark.parametrize(
    "text", ["", " ", "xyzzy", "LOOK", "help me", "go to", "go to  cabinet 1", "look\nlook", "a" * 99_999]
)
def test_an_inadmissible_action_changes_nothing(text):
    first, after = play(BY_TYPE["pick"], [text])
    assert after.observation == "Nothing happens."
    assert after.admissible_actions == first.admissible_actions
    assert not after.done


def test_white_space_around_a_command_is_ignored():
    command = BY_TYPE["pick"]["walkthrough"][0]
    assert play(BY_TYPE["pick"], [f" \t{command}\n"])[-1] == play(BY_TYPE["pick"], [command])[-1]


def test_reset_forgets_and_sessions_share_nothing():
    game = parse_game(BY_TYPE["heat"])
    one, other = OwnSession(game), OwnSession(game)
    start = one.reset()
    for command in BY_TYPE["heat"]["walkthrough"]:
        one.step(command)
    assert other.reset() == start
    assert one.reset() == start


def test_admissible_commands_come_sorted_and_all_of_them_do_something():
    data = BY_TYPE["cool"]
    for length in range(len(data["walkthrough"])):
        outcomes = play(data, data["walkthrough"][:length])
        listed = outcomes[-1].admissible_actions
        assert listed == sorted(set(listed))
        for command in listed:
            assert play(data, [*data["walkthrough"][:length], command])[-1].observation != "Nothing happens."


def test_an_object_in_two_receptacles_is_taken_from_one():
    data = BY_TYPE["pick"]
    game = parse_game(data)
    first, second = [r for r in game.receptacles if not game.has("openable", r)][:2]
    item = next(iter(game.traits["pickupable"]))
    contents = {**dict.fromkeys(game.contents, ()), first: (item,), second: (item,)}
    state = WorldState(replace(game, contents=contents))
    apply_command(state, ("go", first, ""))
    apply_command(state, ("take", item, first))
    assert state.contents[first] == ()
    assert state.contents[second] == (item,)


@pytest.mark.parametrize(
    ("key", "old", "new", "complaint"),
    [
        ("pddl_domain", "(increase (total-cost) 5)", "(increase (total-cost) 6)", "domain"),
        ("grammar", "You close the", "You shut the", "grammar"),
        ("grammar", "Your task is to: ", "Your task is to: {r.name}", "not plain text"),
        ("pddl_problem", "(:init", "(:init (frobnicated x)", "unknown predicate: frobnicated"),
        ("pddl_problem", "(:init", "(:init (nullary)", "something other than facts"),
        ("pddl_problem", "(:goal", "(:goal (not (holdsAny agent1))", "six known shapes"),
        ("pddl_problem", "(:goal", "(:gaol", "lacks its initial state or its goal"),
        ("pddl_problem", "(:init", "(:init (atLocation agent2 nowhere)", "exactly one agent"),
        ("pddl_problem", "(:init", "(:init (atLocation agent1 nowhere)", "two locations"),
    ],
)
def test_a_game_that_is_not_known_is_refused(key, old, new, complaint):
    data = dict(BY_TYPE["pick"])
    data[key] = data[key].replace(old, new)
    assert data != BY_TYPE["pick"]
    with pytest.raises(UnknownGame, match=complaint):
        parse_game(data)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"grammar": ""}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_refused(text):
    with pytest.raises(UnknownGame):
        load_game(text)


def test_a_goal_must_name_one_type_throughout():
    goal = BY_TYPE["two"]["pddl_problem"].lower()
    goal = goal[goal.index("(:goal") :]
    parsed = parse_goal(goal)
    broken = goal[::-1].replace(f"{parsed.object_type} "[::-1].strip(), "epyteno", 1)[::-1]
    assert broken != goal
    with pytest.raises(UnknownGoal):
        parse_goal(broken)


def test_nothing_depends_on_the_hash_seed():
    script = (
        "import hashlib\n"
        "from envservice.alfworld.engine import OwnSession\n"
        "from envservice.alfworld.game import parse_game\n"
        "from envservice.alfworld.generator import generate\n"
        "for index in range(6):\n"
        "    data = generate('heldout', index)\n"
        "    session = OwnSession(parse_game(data))\n"
        "    seen = [session.reset(), *map(session.step, data['walkthrough'])]\n"
        "    print(hashlib.sha256(repr(seen).encode()).hexdigest())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True, timeout=60,
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 6


def test_a_file_and_its_parsed_form_give_the_same_game():
    assert load_game(json.dumps(BY_TYPE["look"])) == parse_game(BY_TYPE["look"])


def test_the_exact_state_tells_what_the_texts_do_not_and_only_if_it_is_asked_for():
    """Going there and back is the first state again; opening something is another one, and so is a taken object."""
    data = BY_TYPE["pick"]
    session = OwnSession(parse_game(data), exact_state=True)
    start = session.reset()
    there = next(action for action in start.admissible_actions if action.startswith("go to "))
    other = next(action for action in start.admissible_actions if action.startswith("go to ") and action != there)
    seen = [session.step(action).state for action in (there, other, there)]
    assert seen[0] == seen[2] != seen[1]
    assert len({start.state, *seen}) == 3
    states = [OwnSession(parse_game(data), exact_state=True).reset().state for _ in range(2)]
    assert states == [start.state] * 2
    walked = [session.reset().state, *(session.step(action).state for action in data["walkthrough"])]
    assert len(set(walked)) == len(walked)
    assert {outcome.state for outcome in play(data, data["walkthrough"])} == {""}


def test_only_an_action_that_is_not_admissible_leaves_all_unchanged():
    outcomes = play(BY_TYPE["pick"], ["look", "fly", "inventory", "take sun 1 from sky 1"])
    assert [outcome.unchanged for outcome in outcomes] == [False, False, True, False, True]


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textworld" else find_spec(name))
    with pytest.raises(UserError, match=r"needs [\w, ]+; pip install 'gagpo\[alfworld\]'"):
        open_environment(EnvSection(alfworld=AlfworldSection(engine="textworld")))


def test_threads_play_at_once_and_the_process_keeps_its_arguments_and_environment(monkeypatch):
    try:
        textworld_engine.require_textworld()
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    arguments, output = sys.argv, sys.stdout

    def play(index):
        data = generate("valid", index)
        session = textworld_engine.TextworldSession(data)
        return [session.reset(), *map(session.step, data["walkthrough"])][-1]

    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(play, range(2)))
    assert [(end.won, end.done, end.reward) for end in ends] == [(True, True, 1.0)] * 2
    assert sys.argv is arguments
    assert sys.stdout is output
    assert "ALFWORLD_DATA" not in os.environ
