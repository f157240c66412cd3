"""The scripted player: what it makes of texts, and that it finds its way without the walkthrough."""

import random

import pytest

from envservice.alfworld.searcher import Searcher, parse_task
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
