"""Imitation and distillation beside the reward: each is the plain formula, and nothing without its key."""

import math

import msgspec
import numpy as np
import pytest
import torch
from learner_tiny import (
    CASES,
    TEACHER,
    make_config,
    make_demonstrations,
    make_groups,
    make_learner,
    norms_of,
    teacher_of,
    weights,
)
from transformers import AutoModelForCausalLM

from learner.rows.batch import demonstrations_at
from learner.trainer import Learner
from services.config.sections import DistillSection, ImitationSection
from services.seeds import seed_for

ALONE = {"loss": {"ratio": "token", "aggregation": "tokens", "kl": 0.0, "entropy": 0.0}, "minibatch_rows": 1000}
"""One update with nothing but the policy term."""
DISTILLS = {"teacher": TEACHER, "credit": 0.0}


def norm_of(model):
    return torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()])).item()


def logprobs(model, prompt, answer):
    """Returns the logprobs of the tokens of an answer, by transformers' own code."""
    ids = torch.tensor(np.concatenate([prompt, answer]), dtype=torch.int64)[None]
    logp = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1:-1], -1)
    return logp.gather(-1, ids[0, len(prompt):, None])[:, 0]


def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def with_steps(groups, change):
    """Returns the groups with each step replaced by `change` of it."""
    return [[msgspec.structs.replace(episode, steps=[change(step) for step in episode.steps]) for episode in group]
            for group in groups]


def steps_of(groups):
    return [step for group in groups for episode in group for step in episode.steps]


def test_a_weight_falls_linearly_to_zero():
    assert [ImitationSection(weight=2.0, decay_steps=4).weight_at(step) for step in range(1, 7)] == [
        2.0, 1.5, 1.0, 0.5, 0.0, 0.0]
    assert [ImitationSection(weight=2.0).weight_at(step) for step in (1, 1000)] == [2.0, 2.0]
    assert [DistillSection(teacher="t", decay_steps=2).weight_at(step) for step in (1, 2, 3)] == [1.0, 0.5, 0.0]
    assert DistillSection(decay_steps=2).weight_at(1) == 0.0, "there is no teacher"


@pytest.mark.parametrize("count", [3, 7, 10, 15])
def test_consecutive_steps_show_every_row_equally_often(count):
    rows = [*range(7)]
    batches = [demonstrations_at(rows, step, count=count, seed=5) for step in range(1, 8)]  # count epochs
    assert [len(batch) for batch in batches] == [count] * 7
    order = [row for batch in batches for row in batch]
    epochs = [order[start:start + 7] for start in range(0, len(order), 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert order[3 * count:4 * count] == batches[3] == demonstrations_at(rows, 4, count=count, seed=5)


def test_at_weight_zero_a_run_keeps_its_digits(model_path, rank_group):
    before = Learner(make_config(**CASES["token-tokens"]), model_path, rank_group)
    after = make_learner(model_path, rank_group, **CASES["token-tokens"], imitation={"weight": 0.0, "rows": 3})
    for step in range(2):
        first, second = (one.train(make_groups(step, step=step)).metrics for one in (before, after))
        names = [name for name in first if not name.startswith("seconds/")]
        assert [repr(first[name]) for name in names] == [repr(second[name]) for name in names]
        assert math.isnan(second["loss/imitation"])
    assert all(torch.equal(*pair) for pair in zip(weights(before).values(), weights(after).values(), strict=True))


def test_steps_after_the_decay_train_on_no_demonstration(model_path, rank_group):
    learner = make_learner(model_path, rank_group, imitation={"weight": 1.0, "decay_steps": 1})
    shown, ended = (learner.train(make_groups(step, step=step)).metrics["loss/imitation"] for step in range(2))
    assert shown > 0
    assert math.isnan(ended)


def test_the_gradient_of_imitation_is_that_of_the_plain_formula(model_path, rank_group):
    """The groups of equal rewards have no credit, so the update is that of the demonstrations alone."""
    section = {"weight": 0.25, "rows": 5}
    learner = make_learner(model_path, rank_group, **ALONE, imitation=section,
                           credit={"estimator": "grpo", "penalty_mode": "none"})
    norms = norms_of(learner.stepper.policy)
    groups = with_steps(make_groups(0), lambda step: msgspec.structs.replace(step, reward=0.0))
    metrics, hf = learner.train(groups).metrics, plain(model_path)
    rows = demonstrations_at(make_demonstrations(), 1, count=5, seed=seed_for(0, "imitation"))
    nats = -torch.cat([logprobs(hf, row.ids[:row.prompt_tokens], row.ids[row.prompt_tokens:]) for row in rows])
    (0.25 * nats.mean()).backward()
    assert metrics["loss/imitation"] == pytest.approx(nats.mean().item(), rel=1e-5)
    assert norms == pytest.approx([norm_of(hf)], rel=1e-4)
    assert metrics["loss/policy"] == 0.0


def test_imitation_adds_its_gradient_to_that_of_the_policy_in_each_update(model_path, rank_group):
    """Six rows over several updates: the losses add up to their mean over all answer tokens."""
    learner = make_learner(model_path, rank_group, lr=1e-12, imitation={"weight": 1.0, "rows": 7})
    norms = norms_of(learner.stepper.policy)
    metrics, hf = learner.train(make_groups(0)).metrics, plain(model_path)
    alone = norms_of((other := make_learner(model_path, rank_group, lr=1e-12)).stepper.policy)
    other.train(make_groups(0))
    with torch.no_grad():
        nats = -torch.cat([logprobs(hf, row.ids[:row.prompt_tokens], row.ids[row.prompt_tokens:])
                           for row in make_demonstrations()])  # an epoch
    assert len(norms) == len(alone) > 1
    assert all(abs(one - two) > 0.01 * two for one, two in zip(norms, alone, strict=True))
    assert metrics["loss/imitation"] == pytest.approx(float(nats.mean()), rel=1e-5)


def test_a_learner_that_imitates_needs_demonstrations(model_path, rank_group):
    with pytest.raises(ValueError, match="no demonstrations"):
        Learner(make_config(imitation={"weight": 0.1}), model_path, rank_group)


@pytest.mark.parametrize("credit", [0.0, 0.5])
def test_the_gradient_of_distillation_is_that_of_the_plain_formula(model_path, rank_group, credit):
    """Token by token: ∇ of the mean of ratio times (credit A + weight (log π_teacher - log π))."""
    learner = make_learner(model_path, rank_group, **ALONE,
                           distill={"teacher": TEACHER, "weight": 0.7, "credit": credit})
    norms, groups = norms_of(learner.stepper.policy), make_groups(0)
    report, hf, teacher = learner.train(groups), plain(model_path), plain(teacher_of(model_path))
    advantages = [a for one in report.credits for row in one.advantages for a in row]
    total, gaps = 0, []
    for step, advantage in zip(steps_of(groups), advantages, strict=True):
        mine = logprobs(hf, step.prompt_ids, step.response_ids)
        with torch.no_grad():
            theirs = logprobs(teacher, step.prompt_ids, step.response_ids)
        for own, other in zip(mine, theirs, strict=True):
            signal = credit * advantage + 0.7 * (other - own.detach())
            total = total - (own - own.detach()).exp() * signal
            gaps.append(float(own.detach() - other))
    (total / len(gaps)).backward()
    assert norms == pytest.approx([norm_of(hf)], rel=1e-4)
    assert report.metrics["distill/reverse_kl"] == pytest.approx(np.mean(gaps), rel=1e-5)


def test_a_policy_that_is_its_teacher_has_no_signal(model_path, rank_group):
    learner = make_learner(model_path, rank_group, **ALONE, distill={"teacher": str(model_path), "credit": 0.0})
    norms = norms_of(learner.stepper.policy)
    metrics = learner.train(make_groups(0)).metrics
    assert metrics["distill/reverse_kl"] == 0.0
    assert norms == [0.0]


def test_without_the_teacher_the_weight_of_credit_stays(model_path, rank_group):
    """Its weight has fallen to 0 before step 2, in which nobody asks it."""
    learner = make_learner(model_path, rank_group, **ALONE, distill=DISTILLS | {"decay_steps": 1})
    norms = norms_of(learner.stepper.policy)
    asked, quiet = (learner.train(make_groups(step, step=step)).metrics for step in range(2))
    assert asked["distill/reverse_kl"] != 0
    assert math.isnan(quiet["distill/reverse_kl"])
    assert norms[1] == 0.0


def sampled(model, step):
    """Returns groups whose answers of six tokens the model has sampled, after one of two prompts and without reward."""
    groups = make_groups(0, step=step, count=16)
    count, generator = len(steps_of(groups)), torch.Generator().manual_seed(step)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]]).repeat(count, 1)[:count]
    for _ in range(6):
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=generator)], 1)
    rows = iter(ids.int().numpy())

    def answered(turn):
        row = next(rows)
        return msgspec.structs.replace(
            turn, prompt_ids=row[:3], response_ids=row[3:], logprobs=np.zeros(6, dtype=np.float32), reward=0.0,
            spans=[msgspec.structs.replace(turn.spans[0], end=6)])

    return with_steps(groups, answered)


def test_a_policy_approaches_its_teacher_in_ten_steps(model_path, rank_group):
    learner = make_learner(model_path, rank_group, lr=1e-2, loss=ALONE["loss"], distill=DISTILLS, minibatch_rows=16,
                           token_budget=4096)
    model, gaps = plain(model_path), []
    for step in range(10):
        model.load_state_dict(weights(learner))
        gaps.append(learner.train(sampled(model, step)).metrics["distill/reverse_kl"])
    assert gaps[0] > 1
    assert gaps[-1] < 0.6 * gaps[0], gaps
