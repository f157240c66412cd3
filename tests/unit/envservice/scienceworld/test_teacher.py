"""Gold paths as demonstrations."""

import random
import time

import pytest

from envservice.base import Outcome
from envservice.scienceworld import teacher
from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.prompts import ScienceworldCompactTemplate
from envservice.scienceworld.teacher import SOLVER, gold_path
from rollout.demonstrations import demonstrate
from services.config.tree import SftSection

TASK = "scienceworld/train/find-non-living-thing/0"
PATH = ("open door to hallway", "go to hallway", "look around", "focus on chair")


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> teacher.ScienceworldDemonstrator:
    monkeypatch.setattr(teacher, "gold_path", lambda task, simplifications: PATH)
    first = Outcome(observation="", admissible_actions=[], info={"task_id": TASK, "simplifications": "easy"})
    return teacher.ScienceworldDemonstrator(first, random.Random(0), SftSection())


def acts(player: teacher.ScienceworldDemonstrator, *observations: str) -> list[str]:
    answers = [player.act(Outcome(observation=text, admissible_actions=[])) for text in observations]
    return [ScienceworldCompactTemplate().parse(answer).action for answer in answers]


def test_it_follows_the_path_and_looks_around_beyond_its_end(player: teacher.ScienceworldDemonstrator):
    seen = ["Your task", "The door is now open.", "You move.", "This room is called x.", "You focus.", "What?"]
    assert acts(player, *seen) == [*PATH, "look around", "look around"]


def test_an_action_that_noise_replaced_is_given_again(player: teacher.ScienceworldDemonstrator):
    """A look in the place of the second; that the third is a look itself is no noise."""
    seen = ["Your task", "The door is now open.", "In your inventory, you see:", "You move to the hallway.",
            "This room is called the hallway."]
    assert acts(player, *seen) == [PATH[0], PATH[1], PATH[1], PATH[2], PATH[3]]


def test_noise_changes_nothing_in_the_world():
    rng, now = random.Random(0), Outcome(observation="", admissible_actions=["open <object>"])
    assert {teacher.disturb("open door", now, now, rng) for _ in range(50)} == {"look around", "inventory"}


@pytest.mark.long  # the simulator takes many seconds to find a solution
def test_noisy_demonstrations_win_and_their_solver_ends_when_nobody_asks(
    environment: ScienceworldEnvironment, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(teacher, "IDLE_S", 0.05)
    shown = [demonstrate(environment, TASK, teacher=teacher.TEACHER, template=ScienceworldCompactTemplate(), seed=seed,
                         sft=SftSection(noise=0.4), max_steps=60) for seed in (0, 0, 1)]
    assert all(one.won for one in shown)
    assert shown[0] == shown[1] != shown[2]
    assert any(not step.train for step in shown[0].steps)
    assert gold_path(TASK, "easy") == gold_path(TASK, "easy")
    until = time.monotonic() + 60
    while SOLVER.runs() and time.monotonic() < until:
        time.sleep(0.02)
    assert not SOLVER.runs()
