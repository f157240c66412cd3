"""The guessing game as TRL's environment has the rules of ours, and a ratio above 1 says that ours is better."""

import pytest

from envservice.registry import open_environment
from lab.bench.trl import Measured, Taken, figures, settings
from lab.bench.trl_theirs import OVER, TrlGame, reward

ENV = settings().env


def secret() -> int:
    """Returns the number of the task, found by trying all of them."""
    environment = open_environment(ENV)
    for number in range(1, 8):
        session = environment.open(task())
        session.reset()
        if session.step(str(number)).won:
            return number
    raise AssertionError


def task() -> str:
    environment = open_environment(ENV)
    return environment.tasks(environment.training_splits()[0])[3]


def said(answer: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": answer}]


def started() -> tuple[TrlGame, int, int]:
    """Returns a game that has begun, its number and another one."""
    game, number = TrlGame(ENV), secret()
    assert game.reset(task=task()) == "Guess my number. Choose one of 1, 2, 3, 4, 5, 6, 7.\nAnswer:"
    return game, number, 1 if number != 1 else 7


def test_a_game_is_won_by_the_first_number_of_an_answer_and_then_over():
    game, number, other = started()
    hint = "low" if other < number else "high"
    assert game.guess(f"I say {other}, or {number}.") == f"{other} is too {hint}.\nAnswer:"
    assert game.guess("none") == "That was none of them.\nAnswer:"
    assert game.guess(f"{number}.") == OVER
    assert reward([said(str(other))], [game]) == [1.0]


@pytest.mark.parametrize("wins", [True, False])
def test_the_last_answer_of_an_episode_counts(wins: bool):
    game, number, other = started()
    game.guess(str(other))
    game.guess(str(other))
    assert reward([said(str(number if wins else other))], [game]) == [float(wins)]


def test_steps_that_took_as_long_are_compared_and_a_ratio_above_1_is_better_for_ours():
    def step(seconds: float, success: float) -> Measured:
        parts = {"step": seconds, "sampling": seconds / 2, "training": seconds / 2}
        return Measured(cpu_s=seconds, taken=Taken(seconds=parts, sampled=100, success=success))

    rounds = [(step(90.0, 0.0), [step(50.0, 0.0), step(40.0, 0.5)]),
              (step(30.0, 0.25), [step(10.0, 0.5), step(10.0, 1.0)])]
    by_name = {figure.name: figure for figure in figures(rounds, ours_gb=8.0, theirs_gb=6.0)}
    seconds, tokens = by_name["step"], by_name["sampled tokens"]
    assert (seconds.value, seconds.reference, seconds.ratio) == (10.0, 30.0, 3.0)  # the first of each is left out
    assert (tokens.value, tokens.reference, tokens.ratio) == (10.0, pytest.approx(100 / 30), pytest.approx(3.0))
    assert (by_name["steps in the same time"].value, by_name["peak memory"].ratio) == (4, 0.75)
    assert [(one.value, one.reference) for name, one in by_name.items() if name.startswith("success")] == [
        (0.25, 0.0), (0.75, 0.25)]
