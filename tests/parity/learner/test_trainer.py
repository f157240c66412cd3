"""The gradient depends on neither packing, micro-batches nor ranks; resumed equals uninterrupted."""

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from learner_tiny import CASES, critic_weights, make_config, make_groups, weights
from transformers import AutoModelForCausalLM

from learner.batch import assign_credit
from learner.rank_group import RankGroup
from learner.trainer import Learner

FIGURES = ("loss/policy", "loss/value", "loss/kl", "loss/entropy", "grad_norm", "clip_fraction", "ratio_mean",
           "logprob_difference_mean", "logprob_difference_max")


def trained(model_path, gang, steps=2, **learner):
    made = Learner(make_config(**learner), model_path, gang)
    reports = [made.train(make_groups(seed, step=seed)) for seed in range(steps)]
    return made, reports


def assert_same(a, b, atol):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", CASES)
def test_the_token_budget_changes_nothing(model_path, gang, case):
    """One row per pack, a few, all in one. Adam makes last bits of near-zero gradients into parts of a step of 5e-4;
    the gradient norm, which Adam cannot hide, is compared as well."""
    whole, expected = trained(model_path, gang, token_budget=100_000, **CASES[case])
    for budget in (64, 150):
        part, found = trained(model_path, gang, token_budget=budget, **CASES[case])
        assert_same(weights(part), weights(whole), 2e-5)
        assert_same(critic_weights(part), critic_weights(whole), 2e-5)
        for a, b in zip(found, expected, strict=True):
            for name in FIGURES:
                assert a.metrics[name] == pytest.approx(b.metrics[name], abs=2e-5, rel=2e-4), name


@pytest.fixture(scope="module")
def pair_path(model_path, tmp_path_factory):
    """What two gloo processes leave of each case."""
    out, here = tmp_path_factory.mktemp("pair"), Path(__file__).parent
    rendezvous = str(out / "store")
    processes = [
        subprocess.Popen([sys.executable, str(here / "rank_process.py"), str(rank), "2", rendezvous, str(model_path),
                          str(out)], env=os.environ | {"OMP_NUM_THREADS": "1"},
                         stderr=subprocess.PIPE, text=True, cwd=here.parents[2])
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return out


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one(model_path, gang, pair_path, case):
    """Same weights after two steps, same metrics, and a checkpoint that one rank can load."""
    out = pair_path / case
    alone, reports = trained(model_path, gang, **CASES[case])
    pair = torch.load(out / "after.pt")
    assert_same(pair["weights"], weights(alone), 5e-6)
    for mine, theirs in zip(reports, pair["metrics"], strict=True):
        for name in FIGURES:
            assert theirs[name] == pytest.approx(mine.metrics[name], abs=1e-5, rel=1e-5), name
    for mine, theirs in zip((c for r in reports for c in r.credits), pair["advantages"], strict=True):
        assert list(chain.from_iterable(theirs)) == pytest.approx(list(chain.from_iterable(mine.advantages)), abs=1e-5)
    resumed = Learner(make_config(**CASES[case]), model_path, gang)
    resumed.load(out / "checkpoint")
    assert resumed.step == 2
    assert_same(weights(resumed), pair["weights"], 0)
    assert_same(critic_weights(resumed), critic_weights(alone), 5e-6)
    alone.train(make_groups(2, step=2))
    exported = AutoModelForCausalLM.from_pretrained(out / "export").state_dict()
    assert_same(exported, weights(alone), 1e-5)


@pytest.mark.parametrize("case", ["sequence-actions", "critic"])
def test_resumed_equals_uninterrupted_to_the_bit(any_model_path, gang, tmp_path, case):
    learner, _ = trained(any_model_path, gang, steps=2, **CASES[case])
    learner.save(tmp_path)
    last = learner.train(make_groups(2, step=2))
    resumed = Learner(make_config(**CASES[case]), any_model_path, gang)
    resumed.load(tmp_path)
    again = resumed.train(make_groups(2, step=2))
    assert_same(weights(resumed), weights(learner), 0)
    assert_same(critic_weights(resumed), critic_weights(learner), 0)
    assert [again.metrics[name] for name in FIGURES] == [last.metrics[name] for name in FIGURES]


def test_a_step_moves_weights_and_reports(model_path, gang):
    before = Learner(make_config(), model_path, gang)
    start = weights(before)
    report = before.train(make_groups(0))
    assert any((a != b).any() for a, b in zip(start.values(), weights(before).values(), strict=True))
    assert {f"seconds/{p}" for p in ("credit", "pack", "forward_backward", "optimizer")} <= report.metrics.keys()
    assert report.metrics["loss/kl"] >= 0
    assert all(np.isfinite(value) for value in report.metrics.values())
    assert len(report.credits) == 2
    tied = weights(before)
    assert torch.equal(tied["lm_head.weight"], tied["model.embed_tokens.weight"])


def test_one_update_is_that_of_the_plain_formula(model_path, gang):
    """On-policy, one minibatch, no KL, no entropy: SGD-like check of the gradient norm against a row-by-row loop."""
    loss = {"kl": 0.0, "entropy": 0.0}
    learner = Learner(make_config(minibatch_rows=1000, loss=loss), model_path, gang)
    groups = make_groups(0)
    hf = AutoModelForCausalLM.from_pretrained(model_path, attn_implementation="eager")
    credits = assign_credit(groups, make_config().learner.credit)
    rows = [(s, a) for group, credit in zip(groups, credits, strict=True)
            for e, advantages in zip(group, credit.advantages, strict=True)
            for s, a in zip(e.steps, advantages, strict=True)]
    total = 0
    for step, advantage in rows:
        ids = torch.tensor(np.concatenate([step.prompt_ids, step.response_ids]), dtype=torch.int64)[None]
        logp = torch.log_softmax(hf(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1], -1)
        picked = logp.gather(-1, ids[0, len(step.prompt_ids) :, None]).mean()
        total = total - advantage * (picked - picked.detach()).exp() / len(rows)
    total.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in hf.parameters()])).item()
    assert learner.train(groups).metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_stale_rows_are_corrected_and_fresh_ones_are_not(model_path, gang):
    """The same episodes, once of the present policy and once of an older one: the weights come out different."""
    fresh = Learner(make_config(), model_path, gang)
    stale = Learner(make_config(), model_path, gang)
    stale.step = 1
    fresh.train(make_groups(0))
    stale.train(make_groups(0))
    assert any((a != b).any() for a, b in zip(weights(fresh).values(), weights(stale).values(), strict=True))


def test_a_gang_of_two_needs_a_rendezvous():
    with pytest.raises(ValueError, match="rendezvous"):
        RankGroup(0, 2)
