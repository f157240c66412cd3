"""The gradient depends on neither packing, micro-batches nor ranks; resumed equals uninterrupted."""

import os
import subprocess
import sys
from dataclasses import fields
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from learner_tiny import (
    CASES,
    VARIANTS,
    WRONG,
    critic_weights,
    make_config,
    make_groups,
    make_learner,
    teacher_of,
    weights,
)
from transformers import AutoModelForCausalLM

from learner.model.policy import load_policy
from learner.rank_group import RankGroup
from learner.rows.batch import assign_credit, rows_of
from learner.rows.packing import pack_rows
from learner.step import Stepper, Timer
from learner.trainer import Learner

FIGURES = ("loss/policy", "loss/value", "loss/kl", "loss/entropy", "grad_norm", "clip_fraction", "ratio_mean",
           "logprob_difference_mean", "logprob_difference_max")


def trained(model_path, rank_group, steps=2, first=0, **learner):
    made = make_learner(model_path, rank_group, **learner)
    made.slack = [Slack(trained_model) for trained_model in made.stepper.trained_models]
    reports = [made.train(make_groups(first + step, step=step)) for step in range(steps)]
    return made, reports


class Slack:
    """How far rounding may move each weight of a trained_model: what the arithmetic allows, whatever the machine.

    Another packing or another number of ranks sums the same gradient in another order. In float32 (u = 2^-24) that
    leaves an error of e = C u G in each of its entries: G is the model's largest entry, since an entry that is nearly 0
    is often a sum of large terms that cancel (the bias of the keys has a gradient of exactly 0), and C is the square
    root of the number of summed terms, some 300 tokens, times the depth of the graph, about 4: C = 64. Adam moves a
    weight by lr m / (sqrt(v) + eps). An error e in m and in sqrt(v) changes that by at most 2 e lr / (sqrt(v) + eps),
    which is nothing where gradients are large, and as much as the step itself where sqrt(v) is no larger than e. The
    bound is the sum of this over the updates, and 8 u |w| for the rounding of the weight itself.

    Measured over nine runs (three cases, three seeds, three packings), C was between 0.7 and 11. At C = 64 the median
    bound is 8e-7. One bound for all weights is either too loose for most of them or fails by chance: differences
    reached 1e-5 at weights with next to no gradient.
    """

    C, U, EPS = 64.0, 2.0**-24, 1e-8

    def __init__(self, trained_model):
        self.sums = {name: torch.zeros(parameter.shape) for name, parameter in trained_model.model.named_parameters()}
        self._trainee = trained_model
        trained_model.optimizer.register_step_post_hook(self._add)

    def _add(self, optimizer, *_):
        group = optimizer.param_groups[0]
        assert group["eps"] == self.EPS
        roots = {}
        for name, parameter in self._trainee.model.named_parameters():
            state = optimizer.state[parameter]
            if not state:  # frozen
                continue
            roots[name] = (state["exp_avg_sq"].full_tensor() / (1 - group["betas"][1] ** float(state["step"]))).sqrt()
        largest = max(float(root.max()) for root in roots.values())
        for name, root in roots.items():
            self.sums[name] += 2 * self.C * self.U * largest * group["lr"] / (root + self.EPS)

    def _sum(self, name):
        """A trained_model's names may have a prefix; a tied head is the embedding."""
        found = [value for own, value in self.sums.items() if own.endswith(name)]
        return found[0] if found else self._sum("embed_tokens.weight")

    def check(self, a, b):
        """Raises AssertionError for a weight that differs by more."""
        assert a.keys() == b.keys()
        for name in a:
            slack = self._sum(name) + 8 * self.U * a[name].abs()
            over = (a[name] - b[name]).abs() - slack
            assert float(over.max()) <= 0, f"{name}: {float(over.max())} beyond the bound"


def assert_same(a, b, atol):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", CASES)
def test_the_token_budget_changes_nothing(model_path, rank_group, case):
    """One row per pack, a few, all in one. The gradient norm, which Adam cannot hide, is compared as well."""
    whole, expected = trained(model_path, rank_group, token_budget=100_000, **CASES[case])
    for budget in (64, 150):
        part, found = trained(model_path, rank_group, token_budget=budget, **CASES[case])
        whole.slack[0].check(weights(part), weights(whole))
        if critic_weights(whole):
            whole.slack[1].check(critic_weights(part), critic_weights(whole))
        for a, b in zip(found, expected, strict=True):
            for name in FIGURES:
                assert a.metrics[name] == pytest.approx(b.metrics[name], abs=2e-5, rel=2e-4), name


def run_rank_group(model_path, out, *cases, world, nodes):
    """Returns the folder with the results of each case from a group of gloo processes."""
    here = Path(__file__).parent
    subprocess.run([sys.executable, str(here / "rank_process.py"), str(world), str(nodes), str(out / "store"),
                    str(model_path), str(out), *cases], env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True,
                   cwd=here.parents[2], timeout=900, check=True)
    return out


@pytest.fixture(scope="module")
def pair(model_path, tmp_path_factory):
    """Two ranks on one machine."""
    teacher_of(model_path)  # before two ranks make it at once
    return run_rank_group(model_path, tmp_path_factory.mktemp("pair"), *CASES, *VARIANTS, *WRONG, world=2, nodes=1)


@pytest.fixture(scope="module")
def quad(model_path, tmp_path_factory):
    """Two ranks on each of two machines, which hold the model once each."""
    return run_rank_group(model_path, tmp_path_factory.mktemp("quad"), "critic", world=4, nodes=2)


@pytest.fixture(scope="module")
def apart(model_path, tmp_path_factory):
    """Two ranks on two machines, which share one sharded model."""
    return run_rank_group(model_path, tmp_path_factory.mktemp("apart"), "lora", world=2, nodes=2)


@pytest.mark.parametrize(("ranks", "case"), [
    *(("pair", case) for case in (*CASES, *VARIANTS)),
    *(pytest.param(*nodes, marks=pytest.mark.long) for nodes in (("quad", "critic"), ("apart", "lora")))])
def test_several_ranks_train_the_same_weights_as_one(model_path, rank_group, request, ranks, case):
    """Same weights after two steps, same metrics, and a checkpoint that one rank can load."""
    out, options = request.getfixturevalue(ranks) / case, CASES.get(case) or VARIANTS[case]
    alone, reports = trained(model_path, rank_group, **options)
    pair = torch.load(out / "after.pt")
    adapted = "lora" in case  # its weights are products of two matrices, for which the bound says nothing
    if adapted:
        assert_same(pair["weights"], weights(alone), 5e-6)
    else:
        alone.slack[0].check(weights(alone), pair["weights"])
    for mine, theirs in zip(reports, pair["metrics"], strict=True):
        for name in (*FIGURES, "loss/imitation", "distill/reverse_kl"):
            assert theirs[name] == pytest.approx(mine.metrics[name], abs=1e-5, rel=1e-5, nan_ok=True), name
    for mine, theirs in zip((c for r in reports for c in r.credits), pair["advantages"], strict=True):
        assert list(chain.from_iterable(theirs)) == pytest.approx(list(chain.from_iterable(mine.advantages)), abs=1e-5)
    resumed = make_learner(model_path, rank_group, **options)
    resumed.load(out / "checkpoint")
    assert resumed.step == 2
    assert_same(weights(resumed), pair["weights"], 0)
    if critic_weights(alone):
        alone.slack[1].check(critic_weights(alone), critic_weights(resumed))
    alone.train(make_groups(2, step=2))
    exported = AutoModelForCausalLM.from_pretrained(out / "export").state_dict()
    if adapted:
        assert_same(exported, weights(alone), 1e-5)
    else:
        alone.slack[0].check(weights(alone), exported)


def test_a_rank_group_with_fewer_ranks_than_the_config_asks_for_trains_the_same_weights(model_path, rank_group):
    """learner.fewest_ranks, after a node was lost."""
    fewer, alone = (trained(model_path, rank_group, ranks=ranks, fewest_ranks=1)[0] for ranks in (2, 1))
    found, expected = weights(fewer), weights(alone)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_ranks_that_park_their_states_between_steps_end_with_the_same_bits(pair):
    """97 tokens over two ranks: their shards differ in size, and FSDP pads one of them."""
    plain, offloaded = (torch.load(pair / case / "after.pt") for case in ("critic", "critic-offloaded"))
    assert_same(offloaded["weights"], plain["weights"], 0)
    assert offloaded["advantages"] == plain["advantages"]


def test_a_rank_that_counts_three_percent_too_much_is_beyond_the_bound(model_path, rank_group, pair):
    """The bound is tight enough to find a small wrong coefficient, which Adam hides in part."""
    alone, reports = trained(model_path, rank_group, **WRONG["skewed"])
    wrong = torch.load(pair / "skewed" / "after.pt")
    with pytest.raises(AssertionError, match="beyond the bound"):
        alone.slack[0].check(weights(alone), wrong["weights"])
    assert wrong["metrics"][0]["grad_norm"] != pytest.approx(reports[0].metrics["grad_norm"], abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("first", [10, 20, 30])
def test_the_bound_holds_over_seeds(model_path, rank_group, first):
    """For another packing, which sums in another order as more ranks do."""
    one, _ = trained(model_path, rank_group, first=first, **CASES["sequence-actions"])
    other, _ = trained(model_path, rank_group, first=first, **CASES["sequence-actions"], token_budget=100_000)
    one.slack[0].check(weights(one), weights(other))


@pytest.mark.parametrize("case", ["sequence-actions", "critic", "signals"])
def test_resumed_equals_uninterrupted_to_the_bit(any_model_path, rank_group, tmp_path, case):
    learner, _ = trained(any_model_path, rank_group, steps=2, **(CASES | VARIANTS)[case])
    saving = learner.save(tmp_path)
    last = learner.train(make_groups(2, step=2))  # while it is written
    saving.result(60)
    resumed = make_learner(any_model_path, rank_group, **(CASES | VARIANTS)[case])
    resumed.load(tmp_path)
    again = resumed.train(make_groups(2, step=2))
    assert_same(weights(resumed), weights(learner), 0)
    assert_same(critic_weights(resumed), critic_weights(learner), 0)
    assert [again.metrics[name] for name in FIGURES] == [last.metrics[name] for name in FIGURES]


def test_a_step_moves_weights_and_reports(model_path, rank_group):
    before = Learner(make_config(), model_path, rank_group)
    start = weights(before)
    report = before.train(make_groups(0))
    assert any((a != b).any() for a, b in zip(start.values(), weights(before).values(), strict=True))
    assert {f"seconds/{p}" for p in ("credit", "pack", "forward_backward", "optimizer")} <= report.metrics.keys()
    assert report.metrics["loss/kl"] >= 0
    assert {name for name, value in report.metrics.items() if not np.isfinite(value)} == {
        "explained_variance", "loss/imitation", "distill/reverse_kl", "credit/mixed_share"}, (
            "there is no critic, no demonstration, no teacher and no list of admissible actions")
    assert len(report.credits) == 2
    tied = weights(before)
    assert torch.equal(tied["lm_head.weight"], tied["model.embed_tokens.weight"])


def of_another_policy(groups):
    """The groups with sampler logprobs between -9 and 0, around which the tiny model's lie: some weights are capped."""
    return [[msgspec.structs.replace(episode, steps=[
        msgspec.structs.replace(step, logprobs=9 * step.logprobs) for step in episode.steps]) for episode in group]
        for group in groups]


def importance(logp, sampler, how):
    """Token weights, written out: none on-policy, min(π / π_sampler, 2) decoupled; coupled has them in its ratio."""
    return [1.0 if how == "none" else min(float(torch.exp(p - s)), 2.0) for p, s in zip(logp, sampler, strict=True)]


@pytest.mark.parametrize("correction", ["none", "decoupled"])
def test_one_update_is_that_of_the_plain_formula(model_path, rank_group, correction):
    """One minibatch, no KL, no entropy: the gradient norm against a row-by-row loop. Decoupled: rows of an older
    policy, whose sampler logprobs are far off, so that some weights are capped."""
    loss = {"kl": 0.0, "entropy": 0.0, "correction": correction}
    learner = Learner(make_config(minibatch_rows=1000, loss=loss), model_path, rank_group)
    learner.step = 1
    groups = of_another_policy(make_groups(0))
    hf = AutoModelForCausalLM.from_pretrained(model_path, attn_implementation="eager")
    credits = assign_credit(groups, make_config().learner.credit)
    rows = [(s, a) for group, credit in zip(groups, credits, strict=True)
            for e, advantages in zip(group, credit.advantages, strict=True)
            for s, a in zip(e.steps, advantages, strict=True)]
    total, capped = 0, []
    for step, advantage in rows:
        ids = torch.tensor(np.concatenate([step.prompt_ids, step.response_ids]), dtype=torch.int64)[None]
        logp = torch.log_softmax(hf(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1], -1)
        picked = logp.gather(-1, ids[0, len(step.prompt_ids) :, None])[:, 0]
        tokens = importance(picked.detach(), torch.tensor(step.logprobs), correction)
        capped += [weight == 2.0 for weight in tokens]
        for weight, token in zip(tokens, picked, strict=True):
            total = total - weight * advantage * (token - token.detach()).exp() / len(picked) / len(rows)
    total.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in hf.parameters()])).item()
    found = learner.train(groups).metrics
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert found["is_capped_share"] == pytest.approx(np.mean(capped))
    assert any(capped) == (correction == "decoupled")


def test_figures_per_token_are_means_over_tokens_whatever_the_minibatches(model_path, rank_group):
    """Minibatches have as many rows each, but not as many tokens. A learning rate of next to 0 keeps the policy."""
    found = []
    for rows in (3, 1000):
        learner = Learner(make_config(minibatch_rows=rows, lr=1e-12, loss={"corrected_rows": "all"}), model_path,
                          rank_group)
        found.append(learner.train(of_another_policy(make_groups(0))).metrics)
    for name in ("loss/entropy", "is_capped_share"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-6), name
    assert 0 < found[0]["is_capped_share"] < 1


def test_stale_rows_are_corrected_and_fresh_ones_are_not(model_path, rank_group):
    """The same episodes, once of the present policy and once of an older one: the weights come out different."""
    fresh = Learner(make_config(), model_path, rank_group)
    stale = Learner(make_config(), model_path, rank_group)
    stale.step = 1
    fresh.train(make_groups(0))
    stale.train(make_groups(0))
    assert any((a != b).any() for a, b in zip(weights(fresh).values(), weights(stale).values(), strict=True))


@pytest.mark.parametrize(("policy_step", "incarnation", "stale"), [
    (0, None, False), (1, None, True), (0, 1, False), (0, 2, True)])
def test_a_row_of_an_older_policy_or_of_another_incarnation_is_stale(policy_step, incarnation, stale):
    """The tiny groups are of version 0 of incarnation 1. Only learners on GPUs name an incarnation."""
    groups = make_groups(0)
    rows = rows_of(groups, assign_credit(groups, make_config().learner.credit), policy_step=policy_step,
                   incarnation=incarnation)
    assert rows.stale.tolist() == [stale] * len(rows)


def test_a_rank_group_of_two_needs_a_rendezvous():
    with pytest.raises(ValueError, match="rendezvous"):
        RankGroup(0, 2)


def test_the_power_of_the_ratio_follows_the_steps_of_the_run(model_path, rank_group):
    """p is 1 at the first of four steps and 1/3 at the second: the first is that of p = 1, the second no longer is."""
    loss = CASES["sequence-actions"]["loss"]

    def after(steps, **power):
        made, _ = trained(model_path, rank_group, steps=steps, loss={**loss, **power}, minibatch_rows=4)
        return weights(made)

    scheduled, constant = ({"power": 1.0, "power_last": -1.0}, {"power": 1.0})
    first, second = after(1, **constant), after(2, **constant)
    assert all(torch.equal(first[name], w) for name, w in after(1, **scheduled).items())
    assert any(not torch.equal(first[name], w) for name, w in after(1).items())
    assert any(not torch.equal(second[name], w) for name, w in after(2, **scheduled).items())


class Twice(Stepper):
    """Computes the logprobs before the step by a pass of their own also for the first minibatch."""

    def _plan(self, rows, *arguments):
        self.minibatches = super()._plan(rows, *arguments)
        self.minibatches[0].opens_step = False
        return self.minibatches

    def _packs_across(self, minibatches, rows):
        return super()._packs_across(self.minibatches, rows)


def one_update(model_path, rank_group, kind, **learner):
    """Takes one step with one update. Returns (report, gradients, weights, forward passes of the policy)."""
    made = Learner(make_config(minibatch_rows=1000, **learner), model_path, rank_group)
    made.step = 1
    made.stepper = kind(**{field.name: getattr(made.stepper, field.name) for field in fields(Stepper)})
    gradients, passes = [], []
    update, trained_models = made.stepper.policy.update, made.stepper.trained_models
    made.policy.register_forward_hook(lambda *_: passes.append(1))

    def noted():
        gradients.extend(p.grad.full_tensor().clone() for each in trained_models for p in each.trained)
        return update()

    made.stepper.policy.update = noted
    return made.train(of_another_policy(make_groups(0))), gradients, weights(made), len(passes)


@pytest.mark.parametrize("case", CASES)
def test_the_first_update_needs_no_pass_for_the_logprobs_before_it(model_path, rank_group, case):
    """Its own pass gives them: loss, gradients, weights and logprobs are equal to the bit, with half the passes."""
    (once, gradients, found, passes), (twice, expected, wanted, more) = (
        one_update(model_path, rank_group, kind, **CASES[case]) for kind in (Stepper, Twice))
    assert passes > 1
    assert more == 2 * passes
    assert [once.metrics[name] for name in FIGURES] == [twice.metrics[name] for name in FIGURES]
    assert once.metrics["logprob_difference_max"] > 0
    assert all(np.array_equal(*rows) for rows in zip(once.logprobs, twice.logprobs, strict=True))
    assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True))
    assert_same(found, wanted, 0)


@pytest.mark.parametrize("case", ["sequence-actions", "critic"])
def test_passes_without_gradients_fill_their_packs_across_minibatches(model_path, rank_group, monkeypatch, case):
    """Ten minibatches need ten passes with gradients each, and together fewer without. What a pack's other rows are
    changes a logprob by rounding alone: within a few units of 2^-24 of the largest logit, here below 16."""
    rows = rows_of(groups := make_groups(0, count=4), assign_credit(groups, make_config().learner.credit),
                   policy_step=0)
    learner = Learner(make_config(minibatch_rows=len(rows) // 10, **CASES[case]), model_path, rank_group)
    stepper, sizes = learner.stepper, {"policy": [], "reference": []}
    learner.policy.register_forward_hook(lambda _, args, __: sizes["policy"].append(args[0].tokens.numel()))
    stepper.reference.register_forward_hook(lambda _, args, __: sizes["reference"].append(args[0].tokens.numel()))
    alone = load_policy(model_path)
    with torch.no_grad():
        expected = np.concatenate([alone(pack_rows(rows, np.array([i])))[0].numpy() for i in range(len(rows))])
    taken = stepper.take(rows, Timer())
    updates = len(stepper._plan(rows, 0.0, None))
    assert updates >= 10
    assert len(sizes["reference"]) < updates
    assert sum(sizes["reference"]) == int(rows.lengths.sum())
    assert len(sizes["policy"]) < 2 * updates - 1
    assert np.abs(taken.logprobs - expected).max() < 1e-5
