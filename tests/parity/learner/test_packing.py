"""Packed, padded and single rows give the same logprobs, entropies and gradients. A split covers every row once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learner_tiny import make_step
from transformers import AutoModelForCausalLM

from learner.model import policy as module
from learner.model.policy import load_policy
from learner.rows.packing import cut, make_rows, pack_rows, slowest, split


@pytest.fixture(scope="module")
def steps():
    rng = np.random.default_rng(0)
    return [make_step(rng) for _ in range(9)]


@pytest.fixture(scope="module")
def rows(steps):
    temperatures = [1.0, 0.4, 0.7] * 3
    return make_rows(steps, advantages=np.arange(9), temperatures=temperatures, stale=[False] * 9)


def plain(hf, step, temperature):
    """Computes one row alone with the standard forward pass."""
    ids = torch.tensor(np.concatenate([step.prompt_ids, step.response_ids]), dtype=torch.int64)[None]
    logits = hf(input_ids=ids).logits[0, len(step.prompt_ids) - 1 : -1] / temperature
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(ids[0, len(step.prompt_ids) :]), distribution.entropy()


def test_packed_equals_padded_equals_alone(any_model_path, steps, rows):
    policy = load_policy(any_model_path)
    hf = AutoModelForCausalLM.from_pretrained(any_model_path, attn_implementation="eager")
    order = np.array([3, 0, 8, 1, 7, 2])
    logp, entropy = policy(pack_rows(rows, order))
    lengths = rows.lengths[order]
    padded = torch.zeros(len(order), max(lengths), dtype=torch.int64)
    for i, index in enumerate(order):
        ids = np.concatenate([steps[index].prompt_ids, steps[index].response_ids])
        padded[i, : len(ids)] = torch.tensor(ids)
    logits = hf(input_ids=padded, attention_mask=torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).logits
    start = 0
    for i, index in enumerate(order):
        step, t = steps[index], rows.temperatures[index]
        lone, lone_entropy = plain(hf, step, t)
        end = start + len(lone)
        p, r = len(step.prompt_ids), len(step.response_ids)
        batched = torch.log_softmax(logits[i, p - 1 : p + r - 1] / t, -1).gather(-1, padded[i, p : p + r, None])[:, 0]
        torch.testing.assert_close(logp[start:end], lone, atol=1e-5, rtol=0)
        torch.testing.assert_close(logp[start:end], batched, atol=1e-5, rtol=0)
        torch.testing.assert_close(entropy[start:end], lone_entropy, atol=1e-5, rtol=0)
        start = end
    assert start == len(logp)


def test_gradients_equal_those_of_single_rows(any_model_path, steps, rows):
    policy = load_policy(any_model_path)
    hf = AutoModelForCausalLM.from_pretrained(any_model_path, attn_implementation="eager")
    policy(pack_rows(rows, np.arange(9)))[0].sum().backward()
    for step, temperature in zip(steps, rows.temperatures, strict=True):
        plain(hf, step, temperature)[0].sum().backward()
    for (name, mine), (_, theirs) in zip(policy.hf.named_parameters(), hf.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_a_vocabulary_in_slices_changes_nothing(model_path, rows, monkeypatch):
    results = []
    for at_once in (1 << 26, 97 * 4):
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", at_once)
        policy = load_policy(model_path)
        logp, entropy = policy(pack_rows(rows, np.arange(9)))
        (logp.sum() + entropy.sum()).backward()
        results.append([logp, entropy, *(p.grad for p in policy.parameters())])
    for whole, sliced in zip(*results, strict=True):
        torch.testing.assert_close(sliced, whole, atol=1e-5, rtol=1e-5)


def test_sliding_window_is_kept(tmp_path, steps, rows):
    """All layers have a window of 4. Without the mask the logprobs differ in the first digits."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, sliding_window=4,
                         use_sliding_window=True, max_window_layers=0, num_attention_heads=4, num_key_value_heads=2,
                         initializer_range=0.3)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    hf = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    logp, _ = load_policy(tmp_path)(pack_rows(rows, np.array([0])))
    torch.testing.assert_close(logp, plain(hf, steps[0], 1.0)[0], atol=1e-5, rtol=0)


def test_pack_by_hand(steps, rows):
    """Row 2 then row 5: positions restart, targets are the responses, the predictor of a token is the one before."""
    p = pack_rows(rows, np.array([2, 5]))
    a, b = steps[2], steps[5]
    n_a, n_b = len(a.prompt_ids) + len(a.response_ids), len(b.prompt_ids) + len(b.response_ids)
    assert p.positions[0].tolist() == [*range(n_a), *range(n_b)]
    assert p.targets.tolist() == [*a.response_ids, *b.response_ids]
    first_b = n_a + len(b.prompt_ids) - 1
    assert p.predicting.tolist() == [*range(len(a.prompt_ids) - 1, n_a - 1), *range(first_b, n_a + n_b - 1)]
    assert p.row.tolist() == [0] * len(a.response_ids) + [1] * len(b.response_ids)
    assert p.sampler_logprobs.tolist() == [*a.logprobs, *b.logprobs]
    assert p.advantages.tolist() == [2.0, 5.0]


@given(st.lists(st.integers(2, 50), min_size=1, max_size=40), st.integers(1, 3), st.integers(50, 300))
def test_split_covers_every_row_once_within_the_budget(lengths, ranks, budget):
    lengths = np.array(lengths)
    plan = split(lengths, ranks, budget)
    assert sorted(int(i) for packs in plan for p in packs for i in p) == list(range(len(lengths)))
    assert len({len(packs) for packs in plan}) == 1
    assert all(len(p) * max(lengths[p]) <= budget for packs in plan for p in packs if len(p))
    loads = [sum(lengths[i] for p in packs for i in p) for packs in plan]
    assert max(loads) - min(loads) <= max(lengths)


TRANSCRIPTS = np.array([
    2284, 2680, 2377, 2620, 2288, 3124, 3017, 2219, 1723, 1855, 1689, 1791, 2313, 3922, 2048, 2036, 1933, 1695, 2317,
    1687, 1582, 1589, 1352, 1474, 2748, 4039, 3546, 2631, 2032, 1991, 1725, 2840, 2634, 1554, 757, 1811, 2036, 3213,
    1659, 2109, 3312, 1945, 2539, 2067, 1662, 1954, 1876, 2473])
"""Words of 48 episodes of the scripted player in ALFWorld, each as one transcript."""


PAIR_COST = 3.28e-5
"""At 1.5B: attention has the work of all matrices at 30,000 tokens."""


@pytest.mark.parametrize(("longer", "ranks", "budget"), [
    (1, 4, 16_384), (8, 3, 65_536), (8, 8, 65_536), (12, 8, 65_536)])
def test_packs_that_run_at_once_have_equal_work(longer, ranks, budget):
    """Each rank's sequences cut one after another, as a rectangle needs them, wait 4 to 25% of the time: the last packs
    are not equally full, and attention is quadratic. Transcripts `longer` times as long stand for longer episodes."""
    lengths = TRANSCRIPTS * longer
    work = lengths + PAIR_COST * lengths.astype(float) ** 2
    shares = [np.concatenate(own) for own in split(lengths, ranks, budget, pair_cost=PAIR_COST)]
    before, after = cut(shares, lengths, budget, grid=False), split(lengths, ranks, budget, grid=False,
                                                                    pair_cost=PAIR_COST)
    ideal = work.sum() / ranks
    assert slowest(before, work) / ideal > 1.03
    assert slowest(after, work) / ideal < 1.06
    assert len(after[0]) <= len(before[0])


@given(st.lists(st.integers(2, 50), min_size=1, max_size=40), st.integers(1, 3), st.integers(20, 300))
def test_packs_of_equal_work_have_every_row_once_within_the_budget(lengths, ranks, budget):
    lengths = np.array(lengths)
    plan = split(lengths, ranks, budget, grid=False, pair_cost=0.02)
    assert sorted(int(i) for packs in plan for p in packs for i in p) == list(range(len(lengths)))
    assert len({len(packs) for packs in plan}) == 1
    assert all(sum(lengths[p]) <= budget or len(p) == 1 for packs in plan for p in packs)


def test_an_empty_response_is_refused(steps):
    import msgspec

    bad = msgspec.structs.replace(steps[0], response_ids=np.array([], dtype=np.int32))
    with pytest.raises(ValueError, match="0 response tokens"):
        make_rows([bad], advantages=[0], temperatures=[1], stale=[False])
