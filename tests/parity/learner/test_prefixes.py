"""Rows that begin alike share tokens, and have the logprobs and gradients of single rows."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from learner.model.policy import load_policy
from learner.rows.packing import make_rows, pack_rows, split
from learner.rows.sequences import CELL, share_prefixes
from services.records import Step


def plain(hf, step, temperature):
    """Computes the logprobs of one row alone with the standard forward pass."""
    ids = torch.tensor([[*step.prompt_ids, *step.response_ids]])
    logits = hf(input_ids=ids).logits[0, len(step.prompt_ids) - 1:-1] / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(step.prompt_ids):, None])[:, 0]


def rows_like(*sequences, prompt=2):
    """Rows of these tokens, of which the first `prompt` are the prompt."""
    steps = [Step(observation="", prompt_ids=np.array(ids[:prompt], np.int32), spans=[], action="", valid=True,
                  response_ids=np.array(ids[prompt:], np.int32), admissible=True, reward=0.0,
                  logprobs=np.zeros(len(ids) - prompt, np.float32)) for ids in sequences]
    count = len(steps)
    return steps, make_rows(steps, advantages=np.arange(count) - 1.0, temperatures=[1.0, 0.4, 0.7] * count,
                            stale=[False] * count)


def test_rows_that_begin_alike_share_tokens_by_hand():
    """The drawing in prefixes.py: abcd, abx and ayz are seven tokens. b predicts c and x, a predicts y."""
    _, rows = rows_like([1, 2, 3, 4], [1, 2, 30], [1, 20, 21], prompt=1)
    p = pack_rows(rows, np.arange(3))
    assert p.tokens.tolist() == [[1, 2, 3, 4, 30, 20, 21]]
    assert p.positions.tolist() == [[0, 1, 2, 3, 2, 1, 2]]
    assert p.grid is not None
    assert p.grid.positions.tolist() == [[0, 1, 2, 3], [0, 1, 4, 0], [0, 5, 6, 0]]
    assert p.grid.cells.tolist() == [0, 1, 2, 3, 6, 9, 10]
    assert p.targets.tolist() == [2, 3, 4, 2, 30, 20, 21]
    assert p.predicting.tolist() == [0, 1, 2, 0, 1, 0, 5]
    flat = pack_rows(rows, np.arange(3), grid=False)
    assert flat.tokens.tolist() == [[1, 2, 3, 4, 1, 2, 30, 1, 20, 21]]
    assert flat.starts.tolist() == [0, 4, 7, 10]


def test_rows_that_begin_alike_have_the_logprobs_and_gradients_of_single_rows(any_model_path):
    """A prompt with three answers, of which two begin alike and one comes twice, a longer prompt, and another one."""
    prompt, longer = [5, 6, 7, 8], [5, 6, 7, 8, 11, 12]
    sequences = [[*prompt, 1, 2, 3], [*prompt, 1, 9], [*prompt, 1, 9], [*prompt, 4, 4, 4, 4], [*longer, 2],
                 [50, 51, 3, 3, 1]]
    steps, rows = rows_like(*sequences, prompt=4)
    policy = load_policy(any_model_path)
    hf = AutoModelForCausalLM.from_pretrained(any_model_path, attn_implementation="eager")
    pack = pack_rows(rows, np.arange(6))
    assert pack.tokens.shape[1] == 4 + 3 + 1 + 0 + 4 + 3 + 5
    logp, _ = policy(pack)
    (logp * pack.advantages[pack.row]).sum().backward()
    lone = [plain(hf, step, t) for step, t in zip(steps, rows.temperatures, strict=False)]
    torch.testing.assert_close(logp, torch.cat(lone), atol=1e-5, rtol=0)
    sum((one * advantage).sum() for one, advantage in zip(lone, rows.advantages, strict=True)).backward()
    for (name, mine), (_, theirs) in zip(policy.hf.named_parameters(), hf.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=2e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_rows_are_packed_in_the_order_of_their_tokens_if_that_saves_more_than_the_padding():
    """Two prompts of 6 tokens with three answers each, of 9, 5 and 1 times the same token. By length each pack has both
    prompts and 30 + 22 + 14 tokens are computed; by tokens a pack has one prompt, and 15 tokens in 3 x 15 cells."""
    sequences = [[start] * 6 + [answer] * length for length in (9, 5, 1) for start, answer in ((1, 3), (2, 4))]
    _, rows = rows_like(*sequences, prompt=6)
    by_length = [[0, 1], [2, 3], [4, 5]]
    plan = split(rows.lengths, 1, 30)
    assert [p.tolist() for p in plan[0]] == by_length
    (packs,) = share_prefixes(plan, rows.contents, 30)
    assert [p.tolist() for p in packs] == [[4, 2, 0], [5, 3, 1]]
    assert [pack_rows(rows, p).tokens.shape[1] for p in packs] == [15, 15]
    assert [pack_rows(rows, np.array(p)).tokens.shape[1] for p in by_length] == [30, 22, 14]


@given(st.lists(st.lists(st.integers(1, 2), min_size=2, max_size=12), min_size=1, max_size=30), st.integers(1, 3),
       st.integers(16, 60))
def test_a_split_by_tokens_covers_every_row_once_and_no_pack_costs_more_than_the_budget(sequences, ranks, budget):
    _, rows = rows_like(*sequences, prompt=1)
    plan = share_prefixes(split(rows.lengths, ranks, budget), rows.contents, budget)
    assert sorted(int(i) for packs in plan for p in packs for i in p) == list(range(len(sequences)))
    assert len({len(packs) for packs in plan}) == 1
    for pack in (pack for packs in plan for pack in packs if len(pack)):
        p = pack_rows(rows, pack)
        assert p.grid is not None
        assert p.tokens[0][p.grid.positions][0, :len(sequences[pack[0]])].tolist() == sequences[pack[0]]
        if len(pack) > 1:
            assert p.tokens.shape[1] + CELL * p.grid.positions.numel() <= budget or p.grid.positions.numel() <= budget


@given(st.lists(st.integers(2, 50), min_size=1, max_size=40), st.integers(50, 300))
def test_rows_that_begin_differently_are_packed_by_length(lengths, budget):
    lengths, contents = np.array(lengths), [np.full(length, i) for i, length in enumerate(lengths)]
    plan = split(lengths, 1, budget)
    assert [p.tolist() for p in share_prefixes(plan, contents, budget)[0]] == [p.tolist() for p in plan[0]]
