"""Calls that continue one another: one sequence gives the logprobs, losses and gradients of rows of their own."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_tiny import CASES, make_config, make_groups, make_step

from learner.model.policy import load_policy
from learner.rows.packing import make_rows, pack_rows
from learner.rows.sequences import joined, last_rows, runs, tokens_of
from learner.trainer import Learner


def conversation(rng, calls):
    """Steps of which each one's prompt is the last call and two to four tokens more."""
    steps = [make_step(rng)]
    while len(steps) < calls:
        said = rng.integers(0, 97, rng.integers(2, 5), dtype=np.int32)
        prompt = np.concatenate([tokens_of(steps[-1]), said])
        steps.append(msgspec.structs.replace(make_step(rng), prompt_ids=prompt))
    return steps


def two_conversations():
    """Two that are mixed, and a lone row: A0 B0 A1 C0 B1 A2."""
    rng = np.random.default_rng(3)
    a, b, c = conversation(rng, 3), conversation(rng, 2), [make_step(rng)]
    return [a[0], b[0], a[1], c[0], b[1], a[2]], [None, None, 0, None, 1, 2]


def rows_both_ways():
    steps, follows = two_conversations()
    common = {"advantages": [1.0, -1.0, 0.5, 2.0, -0.3, 0.7], "temperatures": [1.0, 0.4, 0.7, 1.0, 1.0, 0.4],
              "stale": [False] * 6}
    return make_rows(steps, follows=follows, **common), make_rows(steps, **common)


def test_logprobs_entropies_and_gradients_are_those_of_single_rows(any_model_path):
    one, apart = rows_both_ways()
    assert one.sequence.tolist() == [0, 1, 0, 2, 1, 0]
    assert one.lengths.sum() < apart.lengths.sum()
    found = []
    for rows in (one, apart):
        policy = load_policy(any_model_path).double()
        pack = pack_rows(rows, np.arange(len(rows.lengths))[::-1].copy())
        logp, entropy = policy(pack)
        weight = pack.advantages[pack.row]
        (logp * weight).sum().backward()
        order = np.argsort(np.repeat(pack.members, rows.response_lengths[pack.members]), kind="stable")
        found.append((logp[order], entropy[order], [p.grad for p in policy.parameters()]))
        assert pack.sampler_logprobs[order].tolist() == apart.sampler_logprobs.tolist()
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=0)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-6, rtol=0)
    for mine, theirs in zip(found[0][2], found[1][2], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def talking(groups, *, linked):
    """The groups with conversations in the place of their steps; `linked`: the record says what continues what."""
    rng, out = np.random.default_rng(7), []
    for group in groups:
        out.append([])
        for episode in group:
            talk = conversation(rng, len(episode.steps))
            steps = [msgspec.structs.replace(step, prompt_ids=said.prompt_ids, response_ids=said.response_ids,
                                             logprobs=said.logprobs, spans=said.spans,
                                             follows=t - 1 if linked and t else None)
                     for t, (step, said) in enumerate(zip(episode.steps, talk, strict=True))]
            out[-1].append(msgspec.structs.replace(episode, steps=steps))
    return out


@pytest.mark.parametrize("case", ["sequence-actions", "token-tokens", "critic"])
def test_a_learner_step_is_the_same(model_path, rank_group, case):
    """Losses, advantages, logprobs and the gradient's norm; only the tokens that are computed are fewer."""
    found = []
    for linked in (True, False):
        learner = Learner(make_config(**CASES[case], minibatch_rows=64), model_path, rank_group)
        found.append(learner.train(talking(make_groups(5), linked=linked)))
    one, apart = found
    assert one.metrics["sequences"] < apart.metrics["sequences"]
    assert one.metrics["tokens_trained"] < apart.metrics["tokens_trained"]
    for name in ("loss/policy", "loss/value", "loss/kl", "loss/entropy", "grad_norm", "logprob_difference_mean"):
        assert one.metrics[name] == pytest.approx(apart.metrics[name], abs=1e-5, rel=1e-5), name
    for mine, theirs in zip(one.logprobs, apart.logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    for mine, theirs in zip(one.credits, apart.credits, strict=True):
        for row, other in zip(mine.advantages, theirs.advantages, strict=True):
            np.testing.assert_allclose(row, other, atol=1e-5)


def test_a_row_that_does_not_continue_what_it_names_is_refused():
    steps, follows = two_conversations()
    for wrong in ([None, 0, 0, None, 1, 2], [None, None, 4, None, 1, 2], [0, None, 0, None, 1, 2]):
        with pytest.raises(ValueError, match="does not begin with the tokens"):
            joined(steps, wrong)
    assert joined(steps, follows).tolist() == [0, 1, 0, 2, 1, 0]


def test_two_rows_that_continue_the_same_one_are_two_sequences():
    rng = np.random.default_rng(0)
    first, one = conversation(rng, 2)
    other = msgspec.structs.replace(one, prompt_ids=np.append(one.prompt_ids, np.int32(5)))
    assert joined([first, one, other], [None, 0, 0]).tolist() == [0, 0, 1]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 8))
def test_parts_cut_no_sequence_and_are_those_of_single_rows_without_any(labels, count):
    seen: list[int] = []
    for label in labels:
        seen += [] if label in seen else [label]
    sequence = np.array([seen.index(label) for label in labels])
    count = min(count, len(labels))
    parts = runs(sequence, count)
    assert np.concatenate(parts).tolist() == list(range(len(labels)))
    assert all(len(part) for part in parts)
    for part, after in pairwise(parts):
        assert not set(sequence[part]) & set(sequence[after])
    assert last_rows(sequence).tolist() == [max(i for i, s in enumerate(sequence) if s == one)
                                            for one in range(len(seen))]
    alone = runs(np.arange(len(labels)), count)
    assert [part.tolist() for part in alone] == [p.tolist() for p in np.array_split(np.arange(len(labels)), count)]
