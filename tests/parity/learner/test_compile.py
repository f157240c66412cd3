"""Compiled layers give the gradients of plain ones, and packs of any sizes share their code.

torch's backend without code generation makes the same graphs as the default, in a tenth of the time. The kernel of GPUs
for rows of any length has a stand-in for CPUs here, so packs without a rectangle are compiled too.
"""

import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from learner_tiny import CASES, VARIANTS, make_config, make_groups, make_step, weights
from torch._dynamo.utils import counters
from torch.nn.attention import varlen

from lab.bench.tiny_families import FAMILIES, make_family
from learner.model import sharding
from learner.model.memory import Layout
from learner.model.policy import empty_policy
from learner.model.sharding import check_compiles, shard
from learner.rows.packing import make_rows, pack_rows
from learner.trainer import Learner
from services.errors import UserError

RECOMPILATIONS = 3
LIMIT = 8


def rows_alone(starts, window, *inputs):
    """Yields start and end of each row, its inputs with all heads [H, l, d], and the keys a query sees [l, l]."""
    heads = inputs[0].shape[1]
    for start, end in pairwise(starts.tolist()):
        i = torch.arange(end - start)
        seen = (i[:, None] >= i) & (i[:, None] - i <= (window[0] if window[0] >= 0 else end))
        yield start, end, [x[start:end].transpose(0, 1).repeat_interleave(heads // x.shape[1], 0) for x in inputs], seen


def probabilities(query, key, seen, scale):
    return (query @ key.mT * (scale or query.shape[2] ** -0.5)).masked_fill(~seen, -torch.inf).softmax(-1)


@varlen._varlen_attn.register_kernel("cpu")
def forwards(query, key, value, starts, _keys, longest, *_, scale=None, window_size=(-1, 0), **_others):
    """The arguments are those of torch's operator."""
    assert longest == int(starts.diff().max())
    out = torch.empty_like(query)
    for start, end, (q, k, v), seen in rows_alone(starts, window_size, query, key, value):
        out[start:end] = (probabilities(q, k, seen, scale) @ v).transpose(0, 1)
    return out, torch.zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def backwards(upstream, query, key, value, *others):
    starts, (scale, window) = others[2], others[-2:]
    gradients = [torch.empty_like(x) for x in (query, key, value)]
    for start, end, (g, q, k, v), seen in rows_alone(starts, window, upstream, query, key, value):
        share, above = probabilities(q, k, seen, scale), g @ v.mT
        scores = share * (above - (above * share).sum(-1, keepdim=True)) * (scale or q.shape[2] ** -0.5)
        for gradient, of_heads in zip(gradients, (scores @ k, scores.mT @ q, share.mT @ g), strict=True):
            gradient[start:end] = of_heads.unflatten(0, (gradient.shape[1], -1)).sum(1).transpose(0, 1)
    return tuple(gradients)


@pytest.fixture(autouse=True)
def graphs_without_code(monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])  # pytest's make torch log all it traces
    monkeypatch.setattr(sharding, "BACKEND", "aot_eager_decomp_partition")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return make_rows([make_step(rng) for _ in range(40)], advantages=[1.0] * 40, temperatures=[1.0] * 40,
                     stale=[False] * 40)


def family_at(folder, name):
    (family,) = (one for one in FAMILIES if one.name == name)
    return make_family(family, folder)


def policy_at(folder, rank_group, *, half=False, **layout):
    policy, found = empty_policy(folder)
    shard(policy, policy.body, found, rank_group.mesh, layout=Layout(**layout), half=half)
    return policy


def results(policy, pack):
    policy.zero_grad()
    logp, entropy = policy(pack)
    (logp.sum() + entropy.sum()).backward()
    return [logp.detach(), *(p.grad.full_tensor().clone() for p in policy.parameters())]


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(("half", "grid", "checkpointing"), [
    pytest.param(False, True, True, marks=pytest.mark.long), (True, False, False)])
def test_gradients_are_those_of_plain_layers_and_packs_share_their_code(
        tmp_path, rank_group, rows, half, grid, checkpointing):
    """Random packs with one to forty rows. The model's own code, which the probe runs, is not compiled."""
    folder, rng = family_at(tmp_path / "model", "Qwen2, Qwen2.5"), np.random.default_rng(1)
    plain = policy_at(folder, rank_group, half=half)
    compiled = policy_at(folder, rank_group, half=half, compiled=True, checkpointing=checkpointing)
    compiled(pack_rows(rows, np.array([0]), grid=grid), own=True)
    assert graphs() == 0
    for size in (40, 1, *rng.integers(1, 40, 8)):
        pack = pack_rows(rows, rng.permutation(40)[:size], grid=grid)
        for one, two in zip(results(compiled, pack), results(plain, pack), strict=True):
            # The unit of rounding, of the largest element: sums of many tokens have small ones too.
            assert (one - two).abs().max() <= (2**-6 if half else 2**-17) * two.abs().max()
    assert 1 <= graphs() <= 1 + RECOMPILATIONS


def test_a_learner_takes_the_same_step(model_path, rank_group):
    """With adapters, the model without them as reference, and a critic. Each has code of its own, and torch
    compiles no layer more than LIMIT times."""
    keys = VARIANTS["lora"] | CASES["critic"]
    plain, compiled = (Learner(make_config(compile=wanted, **keys), model_path, rank_group) for wanted in (False, True))
    assert [each.layout.compiled for each in (plain, compiled)] == [False, True]
    norms = [learner.train(make_groups(0)).metrics["grad_norm"] for learner in (plain, compiled)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert weights(plain).keys() == weights(compiled).keys()
    assert 1 <= graphs() <= LIMIT


@pytest.mark.long
def test_generated_code_gives_the_same_step(model_path, rank_group, monkeypatch):
    monkeypatch.setattr(sharding, "BACKEND", "inductor")
    norms = [Learner(make_config(compile=wanted, **CASES["token-tokens"]), model_path, rank_group)
             .train(make_groups(0)).metrics["grad_norm"] for wanted in (False, True)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_a_family_with_a_state_is_refused_by_name(tmp_path):
    policy, _ = empty_policy(family_at(tmp_path / "model", "Qwen3.5"))
    with pytest.raises(UserError, match=r"learner\.compile=true: layers of the family qwen3_5_text carry a state"):
        check_compiles(policy.hf, torch.device("cpu"))


def test_a_machine_without_a_compiler_is_refused_in_one_line(model_path, monkeypatch):
    policy, _ = empty_policy(model_path)
    monkeypatch.setattr(sharding, "BACKEND", "no such compiler")
    with pytest.raises(UserError, match=r"torch cannot compile for cpu \(.*no such compiler"):
        check_compiles(policy.hf, torch.device("cpu"))
