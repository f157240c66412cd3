"""The cold start's training: what it trains on, when it ends or writes a state, and that it learns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from learner.cold_start import sft_data
from learner.cold_start.scratch_model import END, scratch_model, train_tokenizer
from learner.cold_start.sft import FINAL_LR, Budget, Lesson, _accumulate, lr_factor, nats, train
from learner.cold_start.sft_data import IGNORE, Example, TokenRow, drawn, encode, padded, within_budget
from learner.cold_start.states import is_due
from learner.model import memory
from services.answer_end import answer_end
from services.chat import ChatFormat
from services.config.tree import ModelSection, SftSection
from services.errors import LearnerFault, UserError

EXAMPLES = [
    Example(prompt=f"Now: a {noun} {number}\n", response=f"<think>{noun}</think><action>take {noun} {number}</action>")
    for noun in ("mug", "pen", "book", "cup") for number in range(1, 9)
]
TINY = ModelSection(hidden=32, layers=2, heads=1, intermediate=64)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for one in EXAMPLES for text in (one.prompt, one.response)])


@pytest.fixture(scope="module")
def rows(tokenizer):
    return encode(tokenizer, EXAMPLES, chat=None, max_tokens=64)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fresh(tokenizer, seed=0):
    return scratch_model(TINY, tokenizer, max_positions=128, seed=seed)


FIVE = Budget(updates=5)


def fit(model, tokenizer, rows, budget=FIVE):
    return train(model, Lesson(rows, budget, 1), SftSection(batch_rows=8), pad_id=tokenizer.pad_token_id,
                 token_budget=100_000)


def test_a_row_is_prompt_then_answer(tokenizer, rows):
    row = rows[0]
    assert tokenizer.decode(row.ids[: row.prompt_tokens]) == EXAMPLES[0].prompt
    assert tokenizer.decode(row.ids[row.prompt_tokens :]) == EXAMPLES[0].response


def test_a_chat_prompt_goes_through_the_template_of_the_tokenizer(tokenizer):
    (row,) = encode(tokenizer, EXAMPLES[:1], chat=ChatFormat(tokenizer=tokenizer), max_tokens=64)
    assert tokenizer.decode(row.ids[: row.prompt_tokens]) == f"<|user|>{EXAMPLES[0].prompt}{END}<|assistant|>"


def test_a_tokenizer_is_given_some_of_the_texts_at_once(tokenizer, rows, monkeypatch):
    """Its result for all answers of alfworld-best took 3 GB, which the process kept to the end of the run."""
    counts: list[int] = []

    class Counting:
        def __call__(self, texts, **options):
            counts.append(len(texts))
            return tokenizer(texts, **options)

        def __getattr__(self, name):
            return getattr(tokenizer, name)

    monkeypatch.setattr(sft_data, "AT_ONCE", 5)
    found = encode(Counting(), EXAMPLES, chat=None, max_tokens=64)
    assert counts == [5, 5] * 6 + [2, 2]
    assert [row.ids.tolist() for row in found] == [row.ids.tolist() for row in rows]


@pytest.mark.parametrize("stops", [(), ("</action>",), ("</action>", "</unknown>")])
def test_an_answer_that_ends_in_no_token_of_a_stop_gets_the_end_of_text(tokenizer, stops):
    """A model that imitates an answer without an end goes on to the last token that it may sample."""
    shown = [Example(prompt="Now: a mug 1\n", response=response) for response in ("take mug 1", "<action>go</action>")]
    plain, tagged = encode(tokenizer, shown, chat=None, max_tokens=64,
                           end=answer_end(tokenizer, None, stops=stops))
    assert plain.ids[-1] == tokenizer.eos_token_id
    assert (tagged.ids[-1] == tokenizer.eos_token_id) == (not stops)


def test_examples_that_are_too_long_are_left_out_not_cut(tokenizer):
    long = Example(prompt="Now: " + "a mug 1, " * 40, response=EXAMPLES[0].response)
    assert len(encode(tokenizer, [long, EXAMPLES[0]], chat=None, max_tokens=64)) == 1


def test_every_epoch_visits_each_row_once():
    rows = [TokenRow(ids=np.full(2 + n % 5, n, dtype=np.int32), prompt_tokens=1) for n in range(1, 38)]
    stream = drawn(rows, batch_rows=4, seed=3)
    for _ in range(2):
        seen = [int(row.ids[0]) for _ in range(math.ceil(37 / 4)) for row in next(stream)]
        assert sorted(seen) == list(range(1, 38))


def test_targets_are_the_next_tokens_and_padding_has_none():
    rows = [TokenRow(ids=np.array([5, 6, 7, 8]), prompt_tokens=2), TokenRow(ids=np.array([5, 9]), prompt_tokens=1)]
    batch, long, short = padded(rows, 0), 0, 1
    assert batch.ids[long].tolist() == [5, 6, 7, 8]
    assert batch.targets[long].tolist() == [6, 7, 8, IGNORE]
    assert batch.is_response[long].tolist() == [False, True, True, False]
    assert batch.ids[short].tolist() == [5, 9, 0, 0]
    assert batch.targets[short].tolist() == [9, IGNORE, IGNORE, IGNORE]
    assert batch.is_response[short].tolist() == [True, False, False, False]


def test_a_prompt_that_should_not_be_learned_has_no_targets(tokenizer):
    rows = encode(tokenizer, [replace(EXAMPLES[0], learn_prompt=False)], chat=None, max_tokens=64)
    batch = padded(rows, 0)
    assert (batch.targets != IGNORE).tolist() == batch.is_response.tolist()
    response, prompt = nats(fresh(tokenizer), batch)
    assert (response.item() > 1, prompt.item()) == (True, 0)


def test_padding_does_not_change_the_loss(tokenizer, rows):
    model = fresh(tokenizer)
    picked = [rows[0], TokenRow(ids=np.concatenate([rows[1].ids, rows[1].ids]), prompt_tokens=rows[1].prompt_tokens)]
    apart = [nats(model, padded([row], 0)) for row in picked]
    for both, alone in zip(nats(model, padded(picked, 0)), zip(*apart, strict=True), strict=True):
        assert both.item() == pytest.approx(sum(one.item() for one in alone), rel=1e-5)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def plain_loss(model, rows, prompt_loss, response_tokens):
    """The loss of whole rows, one by one, from transformers' own logits."""
    response = prompt = 0.0
    for row in rows:
        ids = torch.tensor(row.ids[None].astype(np.int64))
        logp = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
        response, prompt = response - logp[row.prompt_tokens - 1:].sum(), prompt - logp[:row.prompt_tokens - 1].sum()
    tokens = sum(row.prompt_tokens - 1 for row in rows)
    return response / len(rows) / response_tokens + prompt_loss * prompt / tokens


@pytest.mark.parametrize("prompt_loss", [0.0, 0.5])
def test_a_large_vocabulary_has_no_logits_of_all_positions(monkeypatch, prompt_loss):
    """8 rows of 40 tokens and 5,000 words: 1.6 million logits, of which 16 positions' are made at once. Loss and
    gradients are those of whole rows, within rounding."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=5000, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True))
    rng = np.random.default_rng(0)
    rows = [TokenRow(ids=rng.integers(0, 5000, 33 + n, dtype=np.int32), prompt_tokens=20, learn_prompt=prompt_loss > 0)
            for n in range(8)]
    expected = plain_loss(model, rows, prompt_loss, 16.0)
    expected.backward()
    wanted = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr(memory, "LOGITS_AT_ONCE", 16 * 5000)
    passes = [padded(part, 0) for part in within_budget(rows, 160)]
    assert [len(batch.ids) for batch in passes] == [4, 4]
    with Largest() as largest:
        response, prompt = _accumulate(model, passes, response_tokens=16.0, prompt_loss=prompt_loss)
    assert largest.elements == 16 * 5000
    assert response / 16.0 + prompt_loss * prompt == pytest.approx(expected.item(), rel=1e-6)
    for weight, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(weight.grad, gradient, atol=1e-6, rtol=1e-4)


def test_rows_are_packed_to_a_budget_of_tokens_with_their_padding():
    """5 rows of 10, 10, 10, 12 and 40 tokens: three of 12 are more than 30, and a row alone may be."""
    rows = [TokenRow(ids=np.zeros(length, np.int32), prompt_tokens=1) for length in (10, 10, 10, 12, 40)]
    assert [[len(row.ids) for row in part] for part in within_budget(rows, 30)] == [[10, 10, 10], [12], [40]]


def test_the_rate_warms_up_and_ends_at_a_twentieth():
    assert lr_factor(0, 0.0) == pytest.approx(1 / 50)
    assert lr_factor(49, 0.0) == 1.0
    assert lr_factor(1000, 0.5) == pytest.approx((1 + FINAL_LR) / 2)
    assert lr_factor(1000, 1.0) == pytest.approx(FINAL_LR)


def test_a_fixed_number_of_updates_is_reproducible_to_the_bit(tokenizer, rows):
    models = [fresh(tokenizer), fresh(tokenizer)]
    done = [fit(model, tokenizer, rows) for model in models]
    assert [one.updates for one in done] == [5, 5]
    assert done[0].rows == 40
    for left, right in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(left, right)


def test_a_time_budget_is_used(tokenizer, rows):
    done = fit(fresh(tokenizer), tokenizer, rows, budget=Budget(minutes=0.5 / 60))
    assert done.updates > 0
    assert done.seconds >= 0.5


def test_it_learns_what_was_demonstrated(tokenizer, rows):
    model = fresh(tokenizer)
    fit(model, tokenizer, rows, budget=Budget(updates=300))
    prompt = torch.tensor([tokenizer(EXAMPLES[11].prompt)["input_ids"]])
    answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=8,
                            pad_token_id=tokenizer.pad_token_id)
    assert tokenizer.decode(answer[0, prompt.shape[1] :]).startswith(EXAMPLES[11].response)


def test_a_loss_that_is_not_finite_stops_the_training(tokenizer, rows):
    model = fresh(tokenizer)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(math.nan)
    with pytest.raises(LearnerFault, match="became nan"):
        fit(model, tokenizer, rows)


def test_nothing_to_train_on_is_refused(tokenizer):
    with pytest.raises(ValueError, match="no demonstrations"):
        fit(fresh(tokenizer), tokenizer, [])


def test_heads_that_the_sampler_cannot_serve_are_refused(tokenizer):
    with pytest.raises(UserError, match="cannot serve"):
        scratch_model(ModelSection(hidden=64, heads=4), tokenizer, max_positions=64, seed=0)


def test_tied_and_untied_heads_follow_the_config(tokenizer):
    tied = fresh(tokenizer)
    untied = scratch_model(TINY.model_copy(update={"tie_embeddings": False}), tokenizer, max_positions=64, seed=0)
    extra = sum(w.numel() for w in untied.parameters()) - sum(w.numel() for w in tied.parameters())
    assert extra == len(tokenizer) * TINY.hidden


def test_a_state_is_written_after_a_minute_but_for_at_most_a_twentieth_of_the_time():
    assert [is_due(seconds, 0.5) for seconds in (0.0, 59.9, 60.0)] == [False, False, True]
    assert [is_due(seconds, 30.0) for seconds in (60.0, 599.9, 600.0)] == [False, False, True]
