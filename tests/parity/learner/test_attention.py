"""Rows in a pack and rows in a rectangle give the same attention. Only the kernel itself needs a GPU."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch
from learner_tiny import make_step
from torch.nn.attention.varlen import varlen_attn

from learner.model import attention
from learner.model.attention import attend_grid, attend_varlen, takes_varlen
from learner.model.policy import load_policy
from learner.rows.packing import make_rows, pack_rows, split
from tests.toys.pretended_cuda import GPU, pretended_cuda


def row_by_row(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1),
               enable_gqa=False):
    """Computes each row alone, as torch documents varlen_attn. query [S, H, d], key and value [S, H_kv, d]."""
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert cu_seq_q.dtype == torch.int32
    assert max_q == max_k == int(cu_seq_q.diff().max())
    left, right = window_size
    assert right == 0
    rows = []
    for start, end in pairwise(cu_seq_q.tolist()):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
        i = torch.arange(end - start)
        seen = i[:, None] >= i if left < 0 else (i[:, None] >= i) & (i[:, None] - i <= left)
        rows.append(torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)[0].transpose(0, 1))
    return torch.cat(rows)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    return make_rows([make_step(rng) for _ in range(7)], advantages=np.arange(7), temperatures=[1.0] * 7,
                     stale=[False] * 7)


@pytest.mark.parametrize("window", [None, 5])
def test_varlen_equals_the_rectangle_with_gradients(rows, window):
    grid, flat = (pack_rows(rows, np.arange(7), grid=wanted) for wanted in (True, False))
    torch.manual_seed(0)
    size = flat.tokens.shape[1]
    results = []
    inputs = [torch.randn(1, heads, size, 8, dtype=torch.float64) for heads in (4, 2, 2)]
    for attend in (lambda q, k, v: attend_grid(q, k, v, grid.grid, scaling=0.3, window=window),
                   lambda q, k, v: attend_varlen(q, k, v, flat, scaling=0.3, window=window, kernel=row_by_row)):
        given = [x.clone().requires_grad_() for x in inputs]
        out = attend(*given)
        (out * torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)).sum().backward()
        results.append([out, *(x.grad for x in given)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_the_stand_in_is_called_as_torch_would_be(rows, monkeypatch):
    """A pack without a grid goes through varlen_attn, with arguments that its signature takes."""
    calls = []

    def kernel(*args, **options):
        inspect.signature(varlen_attn).bind(*args, **options)
        calls.append(options["window_size"])
        return row_by_row(*args, **options)

    monkeypatch.setattr(attention.attend_varlen, "__kwdefaults__", {"kernel": kernel})
    hidden = torch.randn(1, 4, int(rows.lengths.sum()), 8)
    out, _ = attention.packed_attention(torch.nn.Identity(), hidden, hidden, hidden, None,
                                        pack=pack_rows(rows, np.arange(7), grid=False))
    expected, _ = attention.packed_attention(torch.nn.Identity(), hidden, hidden, hidden, None,
                                             pack=pack_rows(rows, np.arange(7)))
    assert calls == [(-1, 0)]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("dtype", "size", "window", "grouped"), [
    (torch.float32, 8, None, False), (torch.bfloat16, 8, None, True), (torch.bfloat16, 8, 5, False),
    (torch.bfloat16, 264, None, False)])
def test_a_rectangle_on_a_gpu_never_holds_all_scores(rows, monkeypatch, dtype, size, window, grouped):
    """With fewer key heads than query heads torch has one fast kernel on CUDA, flash attention: for 16-bit numbers,
    heads of at most 256 numbers, and no mask. For anything else it would compute all scores [n, H, L, L] at once."""
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, int(rows.lengths.sum()), size).to(dtype) for heads in (4, 2, 2)]
    expected = attend_grid(*inputs, pack_rows(rows, np.arange(7)).grid, scaling=None, window=window)
    sdpa, calls = torch.nn.functional.scaled_dot_product_attention, []

    def noted(*args, enable_gqa, **options):
        calls.append(enable_gqa)
        return sdpa(*args, enable_gqa=enable_gqa, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    with pretended_cuda(monkeypatch):
        grid = pack_rows(rows, np.arange(7), GPU).grid
        found = attend_grid(*(x.to(GPU) for x in inputs), grid, scaling=None, window=window).cpu()
    assert calls == [grouped]
    torch.testing.assert_close(found, expected)


def test_only_half_precision_on_a_gpu_takes_varlen():
    assert takes_varlen(torch.device("cuda", 0), half=True)
    assert not takes_varlen(torch.device("cuda", 0), half=False)
    assert not takes_varlen(torch.device("cpu"), half=True)


def test_without_a_grid_packs_are_full_of_tokens():
    lengths = np.array([50, 10, 10, 10, 10, 10])
    assert [p.tolist() for p in split(lengths, 1, 100)[0]] == [[0, 1], [2, 3, 4, 5]]
    assert [p.tolist() for p in split(lengths, 1, 100, grid=False)[0]] == [[0, 1, 2, 3, 4, 5]]
    assert [p.tolist() for p in split(lengths, 1, 30, grid=False)[0]] == [[0], [1, 2, 3], [4, 5]]


def test_the_policy_takes_packs_without_a_grid(model_path, rows, monkeypatch):
    policy = load_policy(model_path)
    expected, _ = policy(pack_rows(rows, np.arange(7)))
    monkeypatch.setattr(attention.attend_varlen, "__kwdefaults__", {"kernel": row_by_row})
    found, _ = policy(pack_rows(rows, np.arange(7), grid=False))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
