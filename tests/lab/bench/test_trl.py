"""The guessing game as TRL's environment has the rules of ours, and a ratio above 1 says that ours is better."""

import random

import pytest

from lab.bench.trl import Measured, Taken, _less, _more
from lab.bench.trl_theirs import OVER, Game, reward

SEED = 3
SECRET = random.Random(SEED).randint(1, 7)
OTHER = 1 if SECRET != 1 else 7


def said(answer: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": answer}]


def test_a_game_is_won_by_the_first_number_of_an_answer_and_then_over():
    game = Game()
    assert game.reset(seed=SEED) == "Guess my number. Choose one of 1, 2, 3, 4, 5, 6, 7.\nAnswer:"
    hint = "low" if OTHER < SECRET else "high"
    assert game.guess(f"I say {OTHER}, or {SECRET}.") == f"{OTHER} is too {hint}.\nAnswer:"
    assert game.guess("none") == "That was none of them.\nAnswer:"
    assert game.guess(f"{SECRET}.") == OVER
    assert reward([said(str(OTHER))], [game]) == [1.0]


@pytest.mark.parametrize(("last", "won"), [(SECRET, 1.0), (OTHER, 0.0)])
def test_the_last_answer_of_an_episode_counts(last: int, won: float):
    game = Game()
    game.reset(seed=SEED)
    game.guess(str(OTHER))
    game.guess(str(OTHER))
    assert reward([said(str(last))], [game]) == [won]


def test_a_ratio_above_1_is_better_for_ours():
    def steps(seconds: float) -> list[Measured]:
        return [Measured(cpu_s=seconds, taken=Taken(seconds={"step": seconds}, sampled=100, success=0.5))]

    less = _less("step", "s", steps(10.0), steps(30.0), lambda one: one.taken.seconds["step"])
    more = _more("tokens", "tokens/s", steps(10.0), steps(30.0), lambda one: one.taken.sampled / one.cpu_s)
    assert (less.value, less.reference, less.ratio) == (10.0, 30.0, 3.0)
    assert (more.value, more.ratio) == (10.0, pytest.approx(3.0))
