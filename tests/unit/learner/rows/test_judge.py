"""Judgements in the learner: advantages by hand, and rows alongside the steps."""

import math

import msgspec
import numpy as np
import pytest

from learner.credit.registry import make_options
from learner.rows.batch import assign_credit, rows_of, step_mask
from learner.rows.judge import judge_metrics, judgements
from services.records import Episode, JudgedAction, Step, Ticket, Version, VersionSpan


def step(number: int, *, reward: float = 0.0, said: str = "go", version: int = 7) -> Step:
    """A step whose tokens tell its number."""
    spans = [VersionSpan(version=Version(incarnation=1, step=version), start=0, end=1)]
    return Step(observation=f"s{number}", prompt_ids=np.array([1, number], np.int32),
                response_ids=np.array([number], np.int32), logprobs=np.zeros(1, np.float32), spans=spans, action=said,
                valid=bool(said), admissible=True, reward=reward)


def judged(turn: int, good: bool, rewards: str, **answer) -> JudgedAction:
    right, wrong = ("good", "bad") if good else ("bad", "good")
    return JudgedAction(turn=turn, good=good, answers=[
        step(100 + turn, reward=float(r), said={"1": right, "0": wrong}[r], **answer) for r in rewards])


def episode(*questions: JudgedAction, k: int = 0, won: bool = True, steps: int = 2) -> Episode:
    ticket = Ticket(group="train/00000000", k=k, size=2, task="t", seed=k, kind="train", temperature=0.5, max_steps=5)
    own = [step(10 * k + t, reward=10.0 * won * (t == steps - 1)) for t in range(steps)]
    return Episode(ticket=ticket, steps=own, won=won, end="won" if won else "turns", worker="w", attempt=1, seconds=0.1,
                   engine="e", judged=list(questions))


def advantages(*episodes: Episode, weight: float = 1.0) -> list[list[float]]:
    return [[advantage for _, advantage in rows] for rows in judgements(episodes, weight)]


def test_advantages_are_compared_within_a_question():
    """Rewards 1 0 0 1: mean 1/2, deviation sqrt(1/3). One good and one bad question weigh the same."""
    unit = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    (found,) = advantages(episode(judged(0, False, "1001"), judged(1, True, "10")))
    assert found == pytest.approx([unit, -unit, -unit, unit, *(x / (math.sqrt(0.5) + 1e-6) for x in (0.5, -0.5))])


def test_a_question_without_spread_makes_no_rows():
    assert advantages(episode(judged(0, False, "1111"), judged(1, True, "0000"))) == [[]]


def test_both_labels_weigh_the_same_over_the_learner_step():
    """Three bad questions and one good one: each bad one has a third. The weight multiplies all."""
    unit = 0.5 / (math.sqrt(0.5) + 1e-6)
    found = advantages(episode(judged(0, False, "10"), judged(1, True, "01")),
                       episode(judged(0, False, "01"), judged(1, False, "10"), k=1), weight=0.5)
    third = unit / 3
    assert found == [pytest.approx([0.5 * x for x in row]) for row in (
        [third, -third, -unit, unit], [-third, third, third, -third])]


def test_one_label_alone_teaches_nothing():
    """Whoever always said that label would be right."""
    assert advantages(episode(judged(0, False, "10"), won=False), episode(k=1)) == [[], []]


def test_judgements_are_rows_after_the_steps_of_their_episode():
    """They are episodes of their own, with their own versions; nothing of the steps changes."""
    group = [episode(judged(0, False, "10", version=6), judged(1, True, "01")), episode(k=1, won=False)]
    options = make_options("gigpo")
    plain = [[msgspec.structs.replace(each, judged=[]) for each in group]]
    credits, expected = assign_credit([group], options), assign_credit(plain, options)
    assert credits == expected
    answers = judgements(group, 1.0)
    rows, alone = rows_of([group], credits, policy_step=7, judged=answers), rows_of(plain, expected, policy_step=7)
    own = step_mask([group], answers)
    assert own.tolist() == [True] * 2 + [False] * 4 + [True] * 2
    for name in ("prompt_lengths", "response_lengths", "advantages", "temperatures", "stale", "ends"):
        np.testing.assert_array_equal(getattr(rows, name)[own], getattr(alone, name), err_msg=name)
    assert rows.tokens.reshape(-1, 3)[own].ravel().tolist() == alone.tokens.tolist()
    assert rows.advantages[~own].tolist() == [advantage for _, advantage in answers[0]]
    assert rows.stale[~own].tolist() == [True, True, False, False]
    assert rows.ends[~own].all()
    assert set(rows.temperatures) == {0.5}


def test_rows_without_judgements_are_the_steps_alone():
    group = [episode(), episode(k=1, won=False)]
    credits = assign_credit([group], make_options())
    answers = judgements(group, 1.0)
    with_none, before = (rows_of([group], credits, policy_step=7, **given) for given in ({"judged": answers}, {}))
    assert step_mask([group], answers).all()
    for name in ("tokens", "sequence", "advantages", "ends", "stale"):
        np.testing.assert_array_equal(getattr(with_none, name), getattr(before, name))


def test_metrics_tell_how_well_it_judges_by_label():
    unread = msgspec.structs.replace(step(1), action="", valid=False)
    odd = JudgedAction(turn=0, good=False, answers=[unread, step(1, reward=1.0, said="bad")])
    found = judge_metrics([episode(judged(1, True, "11"), odd), episode(judged(0, False, "00"), k=1)])
    assert found == {
        "judge/questions": 3, "judge/good_share": pytest.approx(1 / 3), "judge/spread_share": pytest.approx(1 / 3),
        "judge/accuracy": pytest.approx(0.625), "judge/accuracy_good": 1.0, "judge/accuracy_bad": 0.25,
        "judge/unread_share": pytest.approx(1 / 6)}
    nothing = judge_metrics([episode()])
    assert nothing.pop("judge/questions") == 0
    assert all(math.isnan(value) for value in nothing.values())
