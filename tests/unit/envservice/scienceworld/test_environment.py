import gc
import os
import random
import time
from collections.abc import Iterator

import pytest

from envservice.base import Outcome
from envservice.scienceworld.environment import ScienceworldEnvironment
from services.config.env import ScienceworldSection
from services.errors import EnvFault

TASK = "scienceworld/test/find-non-living-thing/225"


@pytest.fixture
def fresh(program: object) -> Iterator[ScienceworldEnvironment]:
    """With a pool of its own."""
    with ScienceworldEnvironment() as one:
        yield one


def walk(environment: ScienceworldEnvironment, task: str, steps: int) -> list[Outcome]:
    session, rng = environment.open(task), random.Random(task)
    seen = [session.reset()]
    while len(seen) <= steps and not seen[-1].done:
        verb = rng.choice(["look at", "pick up", "go to", "open", "activate", "dance"])
        seen.append(session.step(f"{verb} {rng.choice(str(seen[-1].info['objects']).split('; '))}"))
    return seen


def test_a_game_begins_with_its_task_and_a_look_around(environment: ScienceworldEnvironment):
    first = environment.open("scienceworld/test/boil/21").reset()
    task = str(first.info["task"])
    assert task.startswith("Your task is to boil lead.")
    assert first.observation.startswith(f"{task}\n\nThis room is called the bathroom. In it, you see: \n\tthe agent\n")
    assert (first.reward, first.done, first.won) == (0.0, False, False)
    assert {"focus on <object>", "teleport <object>", "look around"} <= set(first.admissible_actions)
    assert "connect <object> to <object>" not in first.admissible_actions
    assert {key: first.info[key] for key in ("score", "task_score", "steps", "moves")} == {
        "score": 0, "task_score": 0.0, "steps": 0, "moves": 0}
    assert "sink" in str(first.info["objects"]).split("; ")


def test_steps_are_counted_by_us_and_not_by_the_clock_of_the_world(environment: ScienceworldEnvironment):
    session = environment.open("scienceworld/test/boil/21")
    session.reset()
    seen = [session.step(action) for action in ("look around", "wait", "wait1", "dance", "look at sink")]
    assert [one.info["steps"] for one in seen] == [1, 2, 3, 4, 5]
    assert [one.info["moves"] for one in seen] == [0, 11, 13, 13, 14]
    assert seen[3].observation == "No known action matches that input."


def test_a_wrong_focus_fails_for_good_and_keeps_the_score_before_it(environment: ScienceworldEnvironment):
    session = environment.open("scienceworld/test/boil/21")
    session.reset()
    end = session.step("focus on sink")
    assert (end.done, end.won, end.reward, end.admissible_actions) == (True, False, 0.0, [])
    assert (end.info["score"], end.info["task_score"]) == (-100, 0.0)
    with pytest.raises(EnvFault, match="the game is over, or has not begun"):
        session.step("look around")


@pytest.mark.parametrize("action", [
    "", "x" * 8192, "open " * 1600, "a\nb", "é\u2028\U0001F600", "\ud800", "\0", "0", "%s", "e",
])
def test_any_string_is_a_legal_action(environment: ScienceworldEnvironment, action: str):
    session = environment.open("scienceworld/test/boil/21")
    session.reset()
    assert session.step(action).observation
    assert session.step("look around").observation.startswith("This room is called the bathroom.")


def test_the_same_actions_give_the_same_outcomes_in_any_jvm_and_after_any_game(
    environment: ScienceworldEnvironment, fresh: ScienceworldEnvironment
):
    """Paint, planes, thermometers and doors are those whose text depends on what a JVM has played, if any does."""
    tasks = [f"scienceworld/train/{name}/0" for name in (
        "chemistry-mix-paint-tertiary-color", "inclined-plane-determine-angle", "use-thermometer", "find-plant")]
    forth = [walk(fresh, task, 5) for task in tasks]
    back = [walk(environment, task, 5) for task in reversed(tasks)]
    assert forth == back[::-1] == [walk(fresh, task, 5) for task in tasks]


def test_sessions_do_not_touch_one_another(fresh: ScienceworldEnvironment):
    alone = walk(fresh, TASK, 4)
    one, other = fresh.open(TASK), fresh.open("scienceworld/test/boil/21")
    one.reset()
    other.reset()
    other.step("wait")
    assert len(fresh.pool.pids()) == 2
    assert walk(fresh, TASK, 4) == alone


def test_simulators_are_reused_when_games_end_or_are_dropped(fresh: ScienceworldEnvironment):
    session = fresh.open(TASK)
    session.reset()
    session.reset()
    session.step("look around")
    del session
    gc.collect()
    lost = fresh.open("scienceworld/test/boil/21")
    lost.reset()
    lost.step("focus on sink")
    fresh.open(TASK).reset()
    assert len(fresh.pool.pids()) == 1


def test_a_jvm_that_dies_costs_one_game(fresh: ScienceworldEnvironment):
    session = fresh.open(TASK)
    session.reset()
    (pid,) = fresh.pool.pids()
    os.kill(pid, 9)
    with pytest.raises(EnvFault, match=TASK):
        session.step("look around")
    assert fresh.open(TASK).reset().info["steps"] == 0
    assert fresh.pool.pids() != [pid]


def test_an_idle_jvm_that_has_died_is_passed_over(fresh: ScienceworldEnvironment):
    fresh.open(TASK).reset()
    (pid,) = fresh.pool.pids()
    os.kill(pid, 9)
    while fresh.pool.pids():
        time.sleep(0.01)
    assert fresh.open(TASK).reset().info["steps"] == 0


def test_leaving_the_environment_ends_its_jvms(program: object):
    with ScienceworldEnvironment() as environment:
        session = environment.open(TASK)
        session.reset()
        environment.open(TASK).reset()
        gc.collect()
        assert len(environment.pool.pids()) == 2
    assert environment.pool.pids() == []
    with pytest.raises(EnvFault):
        session.step("look around")


def test_every_action_that_would_do_something_is_listed_when_asked_for(program: object):
    with ScienceworldEnvironment(ScienceworldSection(admissible="valid")) as environment:
        first = environment.open(TASK).reset()
        assert len(first.admissible_actions) > 50
        assert {"look around", "inventory"} <= set(first.admissible_actions)
        assert environment.version == "1.2.3+easy+valid"


def test_a_simplification_that_a_task_must_do_without_is_left_out(program: object):
    settings = ScienceworldSection(simplifications=("openDoors", "noElectricalAction"))
    with ScienceworldEnvironment(settings) as environment:
        assert environment.simplified("boil") == "noElectricalAction,openDoors"
        assert environment.simplified("power-component") == "openDoors"
        first = environment.open("scienceworld/train/power-component/0").reset()
        assert "connect <object> to <object>" in first.admissible_actions
        assert environment.version == "1.2.3+noElectricalAction+openDoors"


def test_digests_are_over_the_simulator_and_what_is_simplified(environment: ScienceworldEnvironment):
    plain = ScienceworldEnvironment(ScienceworldSection(simplifications=()))
    assert environment.task_digest(TASK) != plain.task_digest(TASK)
    assert environment.digest("dev") == ScienceworldEnvironment().digest("dev") != environment.digest("test")
    with pytest.raises(KeyError):
        environment.task_digest("scienceworld/test/boil/0")
