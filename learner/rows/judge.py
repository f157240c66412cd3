"""The judge task of GCD in the learner: rewards of judgements become rows in addition to those of the turns.

    r_a = 1 if answer a is the label, else 0                         rule-based reward (appendix B)
    A_a = w c (r_a - mean) / (std + ε)                               GRPO over the answers to one question
    c = min(1, N_bad / N_good) for good actions, min(1, N_good / N_bad) for bad ones

N counts the questions of the learner step, so both labels weigh the same, and a constant answer gains nothing.
The paper adds good labels by another model instead. w is `learner.judge.weight`: our copy of the paper lacks equation
3, which would give it. A question without spread in its rewards makes no rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from learner.credit.group_operations import center
from services.records import Episode, JudgedAction, Step

Judgements = Sequence[tuple[Step, float]]
"""The answers of one episode's judge task, with their advantages. Each is an episode of one turn."""


def judgements(episodes: Sequence[Episode], weight: float) -> list[Judgements]:
    """Returns the judgements of each episode that are trained on. `episodes`: all of a learner step."""
    shares = _shares([question for episode in episodes for question in episode.judged])
    return [[(answer, weight * shares[question.good] * advantage) for question in episode.judged
             for answer, advantage in _advantages(question) if shares[question.good]] for episode in episodes]


def _shares(questions: Sequence[JudgedAction]) -> Mapping[bool, float]:
    good = sum(question.good for question in questions)
    bad = len(questions) - good
    return {True: min(1.0, bad / good) if good else 0.0, False: min(1.0, good / bad) if bad else 0.0}


def _advantages(question: JudgedAction) -> Judgements:
    rewards = [answer.reward for answer in question.answers]
    if min(rewards) == max(rewards):
        return []
    mean, spread = center(rewards, ddof=1)
    return [(answer, (answer.reward - mean) / spread) for answer in question.answers]


def judge_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns the judge task's metrics of a learner step. Without questions they are NaN.

    questions: number of questions; good_share: share of them about good actions; spread_share: share whose answers do
    not all earn the same. accuracy_good, accuracy_bad: share of right answers by label; accuracy: the mean of the two.
    unread_share: share of answers that are neither good nor bad.
    """
    questions = [question for episode in episodes for question in episode.judged]
    right = {good: _mean([answer.reward for question in questions if question.good == good
                          for answer in question.answers]) for good in (True, False)}
    return {
        "judge/questions": len(questions),
        "judge/good_share": _mean([question.good for question in questions]),
        "judge/spread_share": _mean([bool(_advantages(question)) for question in questions]),
        "judge/accuracy": (right[True] + right[False]) / 2,
        "judge/accuracy_good": right[True],
        "judge/accuracy_bad": right[False],
        "judge/unread_share": _mean([not answer.valid for question in questions for answer in question.answers]),
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
