"""The scripted player wins without the walkthrough, noise has three kinds, renumbered games are the same."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from envservice.alfworld.engine import OwnSession
from envservice.alfworld.game import parse_game
from envservice.alfworld.generator import generate
from envservice.alfworld.memory import parse_task
from envservice.alfworld.teacher import Renumbered, Searcher, disturb
from envservice.base import Outcome

START = [f"go to {name}" for name in ("cabinet 1", "cabinet 2", "countertop 1", "fridge 1", "microwave 1")]


def first(task: str) -> Outcome:
    return Outcome(observation=f"Welcome.\n\nYour task is to: {task}.", admissible_actions=[*START, "help", "look"])


@pytest.mark.parametrize(("sentence", "expected"), [
    ("put a mug in desk.", ("pick", "mug", "desk")),
    ("put some mug on desk.", ("pick", "mug", "desk")),
    ("put a clean mug in desk.", ("clean", "mug", "desk")),
    ("clean some mug and put it in desk.", ("clean", "mug", "desk")),
    ("put a hot mug in desk.", ("heat", "mug", "desk")),
    ("heat some mug and put it in desk.", ("heat", "mug", "desk")),
    ("put a cool mug in desk.", ("cool", "mug", "desk")),
    ("cool some mug and put it in desk.", ("cool", "mug", "desk")),
    ("put two mug in desk.", ("two", "mug", "desk")),
    ("find two mug and put them in desk.", ("two", "mug", "desk")),
    ("look at mug under the desklamp.", ("look", "mug", "desklamp")),
    ("examine the mug with the desklamp.", ("look", "mug", "desklamp")),
])
def test_every_goal_sentence_is_understood(sentence, expected):
    assert parse_task(sentence) == expected


def test_an_unknown_sentence_is_refused():
    with pytest.raises(ValueError, match="not a task"):
        parse_task("slice the bread.")


def test_it_searches_the_likely_place_opens_what_is_closed_and_tries_again_what_failed():
    player = Searcher(first("put a mug in microwave"), jump=0.0, rng=random.Random(0))
    start = first("put a mug in microwave")
    move = player.act(start)
    assert (move.thought, move.action) == ("find mug", "go to countertop 1")
    seen = Outcome(
        observation="You arrive at countertop 1. On the countertop 1, you see a egg 1.",
        admissible_actions=[*(each for each in START if each != "go to countertop 1"), "take egg 1 from countertop 1"],
    )
    place = player.act(seen).action.removeprefix("go to ")
    assert place in {"cabinet 1", "fridge 1", "microwave 1"}
    closed = Outcome(
        observation=f"You arrive at {place}. The {place} is closed.",
        admissible_actions=[f"examine {place}", f"open {place}", "go to countertop 1"],
    )
    assert player.act(closed).action == f"open {place}"
    failed = Outcome(observation="Nothing happens.", admissible_actions=closed.admissible_actions)
    assert player.act(failed).action == f"open {place}"


def test_a_wrong_object_is_put_down():
    player = Searcher(first("put a mug in microwave"), jump=0.0, rng=random.Random(0))
    taken = Outcome(
        observation="You pick up the egg 1 from the countertop 1.",
        admissible_actions=[*START, "move egg 1 to countertop 1"],
    )
    move = player.act(taken)
    assert (move.thought, move.action) == ("drop egg", "move egg 1 to countertop 1")
    strayed = Outcome(
        observation="You arrive at cabinet 1. The cabinet 1 is closed.", admissible_actions=[*START, "look"])
    assert player.act(strayed).action == "go to countertop 1"


def test_a_random_move_can_lead_to_any_place():
    places = set()
    for seed in range(40):
        start = first("put a mug in microwave")
        places.add(Searcher(start, jump=1.0, rng=random.Random(seed)).act(start).action)
    assert places == set(START)


FIRST = Outcome(
    observation="-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.\n\n"
                "Your task is to: put a clean mug in desk.",
    admissible_actions=["go to bed 1", "go to desk 1", "go to desk 2", "help", "inventory", "look"])
AT_DESK = Outcome(
    observation="You arrive at desk 1. On the desk 1, you see a mug 2, and a pen 1.",
    admissible_actions=["go to bed 1", "go to desk 2", "help", "look", "take mug 2 from desk 1",
                        "take pen 1 from desk 1"])


def drawn(now: Outcome, action: str, times: int = 900) -> Counter[str]:
    rng = random.Random(0)
    return Counter(disturb(action, FIRST, now, rng) for _ in range(times))


def test_before_the_first_move_nothing_is_in_vain():
    seen = drawn(FIRST, "go to bed 1")
    admissible = {action for action in seen if action in FIRST.admissible_actions}
    assert admissible == set(FIRST.admissible_actions) - {"help"}
    assert 240 <= sum(seen[action] for action in admissible) <= 360
    assert all(action.startswith("go to bed ") for action in seen if action not in FIRST.admissible_actions)


def test_in_vain_it_goes_where_it_stands_or_takes_what_is_not_there():
    """A third of 900, of which half goes to the desk and half takes a mug with a number from 1 to 6 other than 2."""
    seen = drawn(AT_DESK, "go to bed 1")
    takes = {action for action in seen if action.startswith("take mug") and action not in AT_DESK.admissible_actions}
    assert takes == {f"take mug {number} from desk 1" for number in (1, 3, 4, 5, 6)}
    assert 100 <= seen["go to desk 1"] <= 200
    assert 100 <= sum(seen[action] for action in takes) <= 200
    assert 240 <= sum(seen[action] for action in AT_DESK.admissible_actions) <= 360


def test_where_six_of_a_kind_stand_the_attempt_in_vain_is_to_go_there():
    """No take of a mug with a number from 1 to 6 fails there. The choice among none of them raised."""
    mugs = [f"take mug {number} from desk 1" for number in range(1, 7)]
    seen = drawn(Outcome(observation="", admissible_actions=["go to bed 1", "go to desk 2", *mugs]), "go to bed 1")
    assert 240 <= seen["go to desk 1"] <= 360


def test_an_action_without_a_number_is_disturbed_too():
    assert all(drawn(FIRST, "look", 20))


GAME = generate("train", 3)


def plain(outcome) -> str:
    return re.sub(r"\d+", "#", outcome.observation)


def test_every_answer_differs_in_object_numbers_only():
    real, other = OwnSession(parse_game(GAME)), Renumbered(OwnSession(parse_game(GAME)), seed=4)
    outcomes = [(real.reset(), other.reset())]
    assert outcomes[0][0] == outcomes[0][1]
    for command in GAME["walkthrough"]:
        shown = [each for each in outcomes[-1][1].admissible_actions if other._rename(each, real=True) == command]
        assert len(shown) == 1
        outcomes.append((real.step(command), other.step(shown[0])))
    assert outcomes[-1][1].won
    assert all(plain(mine) == plain(theirs) for mine, theirs in outcomes)
    assert all(theirs.admissible_actions == sorted(theirs.admissible_actions) for _, theirs in outcomes)
    assert any(mine.observation != theirs.observation for mine, theirs in outcomes)


def test_an_inadmissible_action_stays_inadmissible_after_renumbering():
    session = Renumbered(OwnSession(parse_game(GAME)), seed=4)
    start = session.reset()
    for action in ("take mug 3 from cabinet 1", "go to cabinet 99", "mug 7", ""):
        assert action not in start.admissible_actions
        assert session.step(action).observation == "Nothing happens."
