"""A cold start on the learner's ranks takes the updates of one in a single process, however its rows are packed."""

import math

import numpy as np
import pytest
import torch
from learner_tiny import make_config, norms_of, weights
from test_trainer import Slack

from learner.cold_start.rank_training import imitator, train_on_ranks
from learner.cold_start.sft import Budget, Lesson, train
from learner.cold_start.sft_data import TokenRow, load_rows, save_rows
from learner.model.loading import plain_model
from learner.rank_group import RankGroup
from learner.rows.batch import rows_to_learn
from services.config.sections import SftSection

BUDGET = Budget(updates=5)
PLAIN = {"betas": (0.9, 0.99), "weight_decay": 0.01, "grad_clip": 1e9}
"""The AdamW of a cold start in one process, as settings of `learner`."""


def shown(seed=0, count=11):
    """Rows of 4 to 40 tokens. The prompt of every fourth does not count."""
    rng = np.random.default_rng(seed)
    return [TokenRow(ids=rng.integers(1, 97, int(rng.integers(4, 40)), dtype=np.int32),
                     prompt_tokens=int(rng.integers(1, 4)), learn_prompt=n % 4 != 3) for n in range(count)]


def section(**keys):
    return SftSection(batch_rows=4, lr=1e-3, **keys)


def on_ranks(model_path, rank_group, rows, sft, **learner):
    config = make_config(**(PLAIN | learner)).model_copy(update={"sft": sft})
    made = imitator(config, model_path, rank_group)
    slack, told, norms = Slack(made.stepper.policy), [], norms_of(made.stepper.policy)
    progress = train_on_ranks(made, rows, sft, budget=BUDGET, seed=3, report=told.append)
    assert [one.updates for one in told] == [1, 2, 3, 4, 5]
    slack.norms = norms
    return weights(made), progress, slack


@pytest.mark.parametrize("prompt_loss", [0.0, 0.5])
def test_it_takes_the_updates_of_one_process(model_path, rank_group, prompt_loss):
    rows, sft = shown(), section(prompt_loss=prompt_loss)
    model = plain_model(model_path, "float32")
    expected = train(model, Lesson(rows, BUDGET, 3), sft, pad_id=0, token_budget=100_000, muon=False)
    for budget in (64, 100_000):
        found, progress, slack = on_ranks(model_path, rank_group, rows, sft, token_budget=budget)
        slack.check(found, {name: value for name, value in model.state_dict().items() if name in found})
        assert (progress.updates, progress.rows) == (expected.updates, expected.rows)
        assert progress.loss_response == pytest.approx(expected.loss_response, rel=1e-5)
        assert progress.loss_prompt == (pytest.approx(expected.loss_prompt, rel=1e-5) if prompt_loss else None)


def test_adapters_alone_are_trained_if_the_learner_trains_adapters(model_path, rank_group):
    before = plain_model(model_path, "float32").state_dict()
    found, _, _ = on_ranks(model_path, rank_group, shown(), section(), lora={"rank": 4, "alpha": 8.0})
    moved = {name for name, value in found.items() if not torch.equal(value, before[name])}
    assert moved
    assert all("_proj.weight" in name for name in moved)


def test_the_answers_are_learned_and_with_prompts_all_but_the_first_token_of_each():
    """Prompts of 2 and 1 tokens, the second not to learn, and an answer after no prompt at all."""
    batch = [TokenRow(ids=np.array([5, 6, 7, 8], np.int32), prompt_tokens=2),
             TokenRow(ids=np.array([1, 2, 3], np.int32), prompt_tokens=2, learn_prompt=False),
             TokenRow(ids=np.array([4, 9], np.int32), prompt_tokens=0)]
    alone, both = rows_to_learn(batch, prompts=False), rows_to_learn(batch, prompts=True)
    assert (alone.prompt_lengths.tolist(), alone.response_lengths.tolist()) == ([2, 2, 1], [2, 1, 1])
    assert (both.prompt_lengths.tolist(), both.response_lengths.tolist()) == ([1, 2, 1], [3, 1, 1])
    assert both.tokens.tolist() == [5, 6, 7, 8, 1, 2, 3, 4, 9]
    assert both.lengths.tolist() == [4, 3, 2]


def test_rows_come_back_from_their_file(tmp_path):
    rows = shown()
    save_rows(rows, tmp_path / "rows.npz")
    for one, same in zip(rows, load_rows(tmp_path / "rows.npz"), strict=True):
        assert one.ids.tolist() == same.ids.tolist()
        assert (one.prompt_tokens, one.learn_prompt) == (same.prompt_tokens, same.learn_prompt)


def test_the_budget_in_minutes_is_rank_0s(model_path, rank_group):
    sft = section()
    made = imitator(make_config().model_copy(update={"sft": sft}), model_path, rank_group)
    progress = train_on_ranks(made, shown(), sft, budget=Budget(minutes=1e-9), seed=0, report=lambda _: None)
    assert progress.updates == 1
    assert math.isfinite(progress.loss_response)
    assert isinstance(rank_group, RankGroup)
