"""Demonstrations on generated games: won, reproducible, with noise that is executed but not taught."""

import dataclasses

import pytest

from envservice.alfworld.engine import OwnSession
from envservice.alfworld.game import parse_game
from envservice.alfworld.generator import TYPES, generate, parse_task_id, task_id, task_type
from envservice.alfworld.prompts import AlfworldCompactTemplate, AlfworldFullTemplate
from envservice.alfworld.teacher import TEACHER
from rollout.demonstrations import demonstrate
from services.config.tree import SftSection

TASKS = [task_id("train", index) for index in range(120)]
TEMPLATE = AlfworldCompactTemplate(6)
FULL = AlfworldFullTemplate(0)


class Generated:
    """The part of an environment that playing needs."""

    def open(self, task: str) -> OwnSession:
        return OwnSession(parse_game(generate(*parse_task_id(task))))


def play(task: str, seed: int = 0, template=TEMPLATE, max_steps=50, disguised=False, **sft):
    return demonstrate(Generated(), task, teacher=TEACHER, template=template, seed=seed, sft=SftSection(**sft),
                       max_steps=max_steps, disguised=disguised)


@pytest.fixture(scope="module")
def clean():
    return {task: play(task, noise=0.0, jump=0.0) for task in TASKS}


@pytest.mark.parametrize("kind", TYPES)
def test_the_searcher_wins_nearly_all_games_of_every_type(clean, kind):
    demos = [demo for task, demo in clean.items() if task_type(parse_task_id(task)[1]) == kind]
    assert sum(demo.won for demo in demos) >= 0.95 * len(demos)
    assert sum(demo.won and len(demo.steps) <= 30 for demo in demos) >= 0.85 * len(demos)


def test_without_noise_every_step_is_taught_and_admissible():
    for task in TASKS:
        for step in play(task, template=FULL, noise=0.0, jump=0.0).steps:
            action = FULL.parse(step.response_text)
            assert step.train
            assert action.valid
            assert f"'{action.action}'" in step.prompt_text


def test_an_episode_is_a_function_of_its_seed():
    assert play(TASKS[3], seed=5) == play(TASKS[3], seed=5)
    assert len({str(play(TASKS[3], seed=seed, jump=1.0)) for seed in range(5)}) > 1


def test_noise_is_executed_not_taught_and_recovered_from():
    demos = [play(task, noise=0.15, jump=0.2) for task in TASKS]
    steps = [step for demo in demos for step in demo.steps]
    assert 0.11 <= sum(not step.train for step in steps) / len(steps) <= 0.19
    assert sum(demo.won for demo in demos) >= 0.9 * len(demos)
    assert any(" failed" in step.prompt_text for step in steps)
    for demo in demos:
        for step, following in zip(demo.steps, demo.steps[1:], strict=False):
            assert (step.action == TEMPLATE.parse(step.response_text).action) or not step.train
            assert step.action in following.prompt_text.split("\n")[1]


def test_turns_used_up_is_a_lost_episode():
    demos = [play(task, noise=0.0, max_steps=2) for task in TASKS[:12]]
    assert all(len(demo.steps) == 2 and not demo.won for demo in demos)


def test_renumbered_episodes_are_the_same_under_other_numbers(clean):
    for task in TASKS[:12]:
        other = play(task, noise=0.0, jump=0.0, disguised=True)
        assert other.won
        assert len(other.steps) == len(clean[task].steps)
        assert other.steps != clean[task].steps


def test_judgements_show_the_players_action_as_good_and_noise_as_bad():
    """The episodes are the same with and without them."""
    for task in TASKS[:12]:
        plain, judged = play(task), play(task, judgements=1.0)
        assert [dataclasses.replace(step, judged=None) for step in judged.steps] == plain.steps
        for step in judged.steps:
            action, good = step.judged
            assert good == (action == TEMPLATE.parse(step.response_text).action)
    shares = [step.judged for task in TASKS for step in play(task, judgements=0.5).steps]
    asked = [judged for judged in shares if judged]
    assert 0.45 <= len(asked) / len(shares) <= 0.55
    assert 0.45 <= sum(good for _, good in asked) / len(asked) <= 0.6  # noise may be the player's action
