"""A learner step with judgements: the policy learns to say the label, and the steps' own numbers stay the same."""

import msgspec
import numpy as np
from learner_tiny import make_config, make_groups, make_step

from learner.rows.packing import make_rows, pack_rows
from learner.trainer import Learner
from services.records import JudgedAction


def with_judgements(groups, rng):
    """Asks about the first action of each episode: two answers are right, and two others wrong."""
    def question(good):
        prompt = make_step(rng).prompt_ids
        answers = [make_step(rng) for _ in range(4)]
        return JudgedAction(turn=0, good=good, answers=[
            msgspec.structs.replace(answer, prompt_ids=prompt, reward=float(number < 2))
            for number, answer in enumerate(answers)])

    return [[msgspec.structs.replace(episode, judged=[question(k % 2 == 0)]) for k, episode in enumerate(group)]
            for group in groups]


def answers_of(groups, reward):
    return [answer for group in groups for episode in group for question in episode.judged
            for answer in question.answers if answer.reward == reward]


def mean_logprob(learner, steps):
    rows = make_rows(steps, advantages=[0.0] * len(steps), temperatures=[1.0] * len(steps), stale=[False] * len(steps))
    return float(learner.policy(pack_rows(rows, np.arange(len(steps))))[0].detach().mean())


def test_right_judgements_become_likelier_and_wrong_ones_rarer(model_path, rank_group):
    """All episodes earn the same, so the steps teach nothing."""
    plain = [[msgspec.structs.replace(episode, steps=[
        msgspec.structs.replace(step, reward=0.0, valid=True) for step in episode.steps]) for episode in group]
        for group in make_groups(1)]
    groups = with_judgements(plain, np.random.default_rng(5))
    learner = Learner(make_config(credit={"estimator": "rloo"}, loss={"kl": 0.0, "entropy": 0.0}), model_path,
                      rank_group)
    right, wrong = (answers_of(groups, reward) for reward in (1.0, 0.0))
    before = mean_logprob(learner, right), mean_logprob(learner, wrong)
    for _ in range(3):
        report = learner.train(groups)
        assert {x for credit in report.credits for row in credit.advantages for x in row} == {0.0}
    after = mean_logprob(learner, right), mean_logprob(learner, wrong)
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_credit_and_logprobs_of_the_steps_are_those_without_judgements(model_path, rank_group):
    plain = make_groups(3)
    judged = with_judgements(plain, np.random.default_rng(7))
    alone, beside = (Learner(make_config(), model_path, rank_group).train(groups) for groups in (plain, judged))
    assert [credit.advantages for credit in beside.credits] == [credit.advantages for credit in alone.credits]
    assert beside.metrics["sequences"] > alone.metrics["sequences"]
    assert len(beside.logprobs) == len(alone.logprobs) == sum(len(e.steps) for group in plain for e in group)
    for found, expected in zip(beside.logprobs, alone.logprobs, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
