"""The guessing game: halving wins each game, hints are true, and tasks are fixed by their seeds."""

from __future__ import annotations

import random

import pytest

from envservice.adapters.gymnasium import plays_twice
from envservice.base import Turn
from envservice.registry import find_spec, make_template, open_environment
from services.config.tree import EnvSection, SftSection

ENV = EnvSection(name="guess", prompt="full", history=3, max_steps=3)
SPEC = find_spec("guess")
GAMES = open_environment(ENV)
TEACHER = SPEC.teacher


def secret_of(task: str) -> int:
    """Returns the number that opens the game at once."""
    return next(number for number in range(1, 8) if played(task, str(number)).won)


def played(task: str, *actions: str):
    session = GAMES.open(task)
    now = session.reset()
    for action in actions:
        now = session.step(action)
    return now


def test_halving_wins_every_game_by_what_the_prompts_show():
    template, firsts = make_template(ENV), set[str]()
    assert TEACHER is not None
    for task in GAMES.tasks("valid"):
        session, turns = GAMES.open(task), []
        first = now = session.reset()
        player = TEACHER.player(first, random.Random(0), SftSection())
        while not now.done:
            assert now.observation in template.render(first, turns, now)
            parsed = template.parse(player.act(now))
            assert parsed.valid
            turns.append(Turn(observation=now.observation, action=parsed.action, admissible=now.admits(parsed.action)))
            now = session.step(parsed.action)
        assert now.won
        firsts.add(turns[0].action)
    assert firsts == {"4"}


def test_hints_are_true_and_a_third_miss_loses():
    task = next(task for task in GAMES.tasks("train") if secret_of(task) == 5)
    assert played(task, "4").observation == "4 is too low."
    assert played(task, "4", "6").observation == "6 is too high."
    won = played(task, "4", "6", "5")
    assert (won.observation, won.reward, won.done, won.won) == ("Right!", 1.0, True, True)
    lost = played(task, "4", "6", "7")
    assert (lost.reward, lost.done, lost.won, lost.truncated) == (0.0, True, False, False)


def test_the_state_is_the_numbers_and_the_tries_that_are_left():
    task = next(task for task in GAMES.tasks("train") if secret_of(task) == 5)
    assert played(task).state == "1-7 after 0"
    assert played(task, "4", "2").state == played(task, "2", "4").state == "5-7 after 2"


def test_tasks_are_fixed_by_their_seeds_and_each_number_occurs_in_each_split():
    names = {split: GAMES.tasks(split) for split in GAMES.training_splits()}
    assert [len(tasks) for tasks in names.values()] == [1000, 100, 300]
    assert [secret_of(task) for task in names["heldout"][:8]] == [1, 3, 6, 4, 3, 7, 4, 6]
    for tasks in names.values():
        assert {secret_of(task) for task in tasks} == {1, 2, 3, 4, 5, 6, 7}
    for task in names["train"][:5]:
        plays_twice(GAMES, task)


@pytest.mark.parametrize(("answer", "action", "valid"), [
    ("4", "4", True),
    ("My guess is 4, or 5.", "4", True),
    ("17", "17", False),
    ("0", "0", False),
    ("four", "four", False),
    ("", "", False),
])
def test_the_first_number_of_an_answer_is_the_guess(answer: str, action: str, valid: bool):
    parsed = make_template(ENV).parse(answer)
    assert (parsed.action, parsed.valid) == (action, valid)


@pytest.mark.parametrize("action", ["", "four", "17", "\u2603" * 1000])
def test_an_answer_without_a_number_costs_a_try(action: str):
    task = GAMES.tasks("train")[0]
    now = played(task, action)
    assert (now.observation, now.done) == ("That was none of them.", False)
    assert played(task, action, action, action).done


def test_a_prompt_shows_the_last_hints():
    session, turns = GAMES.open(GAMES.tasks("train")[0]), []
    first = now = session.reset()
    for action in ("x", "y"):
        turns.append(Turn(observation=now.observation, action=action, admissible=False))
        now = session.step(action)
    lines = make_template(ENV).render(first, turns, now).split("\n")
    assert lines == [first.observation, now.observation, now.observation, "Answer:"]
    assert len(make_template(ENV.model_copy(update={"history": 1})).render(first, turns, now).split("\n")) == 3
