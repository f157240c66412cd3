"""The critic against the standard model, row by row, and formulas written out."""

import numpy as np
import pytest
import torch
from learner_tiny import CASES, make_config, make_groups, make_step
from transformers import AutoModelForCausalLM

from learner.critic import make_critic
from learner.losses import Mean
from learner.model.memory import Layout
from learner.rows.packing import make_rows, pack_rows
from learner.trainer import Learner

SCORES = [9.9, -0.1, 10.0, 0.0, 10.0, 0.0, -0.1]


@pytest.fixture(scope="module")
def steps():
    rng = np.random.default_rng(3)
    return [make_step(rng) for _ in SCORES]


@pytest.fixture
def rows(steps):
    """Returns the rows of three episodes, of 3, 1 and 3 turns."""
    return make_rows(steps, advantages=SCORES, temperatures=[1.0] * 7, stale=[False] * 7,
                     ends=[t in {2, 3, 6} for t in range(7)])


@pytest.fixture
def packs(rows):
    """Returns two packs, and a filler that must not count."""
    return [pack_rows(rows, np.array(indices, np.int64)) for indices in ([2, 0, 5], [1, 3, 4, 6], [])]


@pytest.fixture
def critic(any_model_path, rank_group):
    """Returns a critic with a non-zero head, unlike a new critic."""
    made = make_critic(make_config(**CASES["critic"]).learner, any_model_path, rank_group, Layout(), half=False)
    torch.manual_seed(1)
    with torch.no_grad():
        made.trained_model.model.head.weight.to_local().copy_(torch.randn(1, 32) / 4)
    return made


def plain_values(folder, critic, steps):
    """Returns values [T] of each row, each row alone through the standard body; and model and head for gradients."""
    body = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").base_model
    head = critic.trained_model.model.head.weight.full_tensor().detach().clone().requires_grad_()
    values = []
    for step in steps:
        ids = torch.tensor(np.concatenate([step.prompt_ids, step.response_ids]), dtype=torch.int64)[None]
        hidden = body(input_ids=ids).last_hidden_state[0, len(step.prompt_ids) - 1 : -1]
        values.append(hidden @ head[0])
    return values, body, head


def plain_advantages(values, gamma, lam):
    """Computes every δ and every sum row by row, without shared code."""
    out = []
    for row, score in zip(values, SCORES, strict=True):
        v = [*row.tolist(), 0.0]
        delta = [(score if k == len(row) - 1 else gamma * v[k + 1]) - v[k] for k in range(len(row))]
        out.append(torch.tensor([sum((gamma * lam) ** (u - k) * delta[u] for u in range(k, len(row)))
                                 for k in range(len(row))], dtype=torch.float64))
    return out


def test_values_returns_and_whitened_advantages(any_model_path, critic, steps, rows, packs):
    values, _, _ = plain_values(any_model_path, critic, steps)
    raw = plain_advantages(values, 1.0, 0.9)
    everything = torch.cat(raw)
    mean, variance = everything.mean(), everything.var(correction=1)
    outputs = critic.outputs(packs, rows)
    for output, order in zip(outputs[:2], ([2, 0, 5], [1, 3, 4, 6]), strict=True):
        v, a = torch.cat([values[i] for i in order]), torch.cat([raw[i] for i in order])
        torch.testing.assert_close(output.values, v.detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(output.returns.double(), a + v.detach(), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(output.advantages.double(), (a - mean) / (variance + 1e-8) ** 0.5, atol=1e-5,
                                   rtol=1e-5)
    targets = everything + torch.cat(values).double().detach()
    assert critic.explained_variance(packs, outputs) == pytest.approx(
        1 - (variance / targets.var(correction=1)).item(), rel=1e-4), "each token counts once, the filler not at all"


def test_a_new_critic_explains_nothing_and_nothing_is_explained_if_all_targets_are_equal(
        model_path, rank_group, steps, rows, packs):
    critic = make_critic(make_config(**CASES["critic"]).learner, model_path, rank_group, Layout(), half=False)
    assert critic.explained_variance(packs, critic.outputs(packs, rows)) == pytest.approx(0, abs=1e-9)
    lost = make_rows(steps, advantages=[0.0] * 7, temperatures=[1.0] * 7, stale=[False] * 7, ends=[True] * 7)
    packed = [pack_rows(lost, np.arange(7))]
    assert np.isnan(critic.explained_variance(packed, critic.outputs(packed, lost)))


def test_turns_are_valued_by_prompts_and_bootstrapped_within_episodes(any_model_path, rank_group, steps, rows, packs):
    """Three episodes of 3, 1 and 3 turns; the value is that of the token before the answer."""
    options = CASES["critic"] | {"credit": {"estimator": "ppo", "values": "turns", "gamma": 0.9, "lam": 0.8}}
    critic = make_critic(make_config(**options).learner, any_model_path, rank_group, Layout(), half=False)
    torch.manual_seed(1)
    with torch.no_grad():
        critic.trained_model.model.head.weight.to_local().copy_(torch.randn(1, 32) / 4)
    values, _, _ = plain_values(any_model_path, critic, steps)
    v = np.array([row[0].item() for row in values])
    raw = np.zeros(7)
    for first, end in ((0, 3), (3, 4), (4, 7)):
        delta = [SCORES[h] + (0.9 * v[h + 1] if h + 1 < end else 0.0) - v[h] for h in range(first, end)]
        for h in range(first, end):
            raw[h] = sum(0.72 ** (u - h) * delta[u - first] for u in range(h, end))
    whitened = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    before, outputs = 0.0, critic.outputs(packs, rows)
    assert critic.explained_variance(packs, outputs) == pytest.approx(
        1 - raw.var(ddof=1) / (raw + v).var(ddof=1), rel=1e-4), "one value a turn"
    for p, output, order in zip(packs, outputs, ([2, 0, 5], [1, 3, 4, 6], []), strict=True):
        if order:
            counts = [len(steps[i].response_ids) for i in order]
            assert output.advantages.tolist() == pytest.approx(np.repeat(whitened[order], counts), abs=1e-4)
            assert output.returns.tolist() == pytest.approx(np.repeat((raw + v)[order], counts), abs=1e-4)
        before += critic.loss(p, output, mean=Mean("actions", 7, 999)).item() * p.weight
    assert before == pytest.approx(np.mean(raw**2) / 2, rel=1e-4), "only the first token of each turn counts"


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_step_with_turn_values_reports_one_advantage_for_each_turn(model_path, rank_group, ratio):
    """A new critic values everything 0, so at γ = λ = 1 a turn's advantage is what its episode still earns."""
    options = CASES["critic"] | {"credit": {"estimator": "ppo", "values": "turns", "gamma": 1.0, "lam": 1.0}}
    options["loss"] = {**options["loss"], "ratio": ratio}
    report = Learner(make_config(**options, token_budget=64), model_path, rank_group).train(make_groups(0))
    left = [sum(s.reward - 0.1 * (not s.valid) for s in episode.steps[t:]) for group in make_groups(0)
            for episode in group for t in range(len(episode.steps))]
    expected = (np.array(left) - np.mean(left)) / np.sqrt(np.var(left, ddof=1) + 1e-8)
    found = [a for credit in report.credits for row in credit.advantages for a in row]
    assert found == pytest.approx(expected, abs=1e-4)


def test_the_value_gradient_is_that_of_the_plain_formula(any_model_path, critic, steps, rows, packs):
    """The values before the step are shifted, so that some rows are clipped. In two packs and a filler."""
    values, body, head = plain_values(any_model_path, critic, steps)
    num_tokens, shift = sum(map(len, values)), 0.8
    plain = 0.0
    for row, advantages in zip(values, plain_advantages(values, 1.0, 0.9), strict=True):
        for v, a in zip(row, advantages, strict=True):
            before, target = v.item() - shift, a.item() + v.item()
            held = min(max(v, before - 0.5), before + 0.5)
            plain = plain + 0.5 * max((v - target) ** 2, (held - target) ** 2) / num_tokens
    plain.backward()
    total = 0.0
    for p, output in zip(packs, critic.outputs(packs, rows), strict=True):
        shifted = output._replace(values=output.values - shift)
        loss = critic.loss(p, shifted, mean=Mean("tokens", len(SCORES), num_tokens)) * p.weight
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(plain.item(), rel=1e-5)
    model = critic.trained_model.model
    torch.testing.assert_close(model.head.weight.grad.full_tensor(), head.grad, atol=1e-4, rtol=1e-4)
    for (name, mine), (_, theirs) in zip(model.body.named_parameters(), body.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad, atol=2e-4, rtol=1e-3,
                                   msg=lambda m, n=name: f"{n}: {m}")


def test_a_fresh_critic_values_nothing_and_learns(model_path, rank_group):
    """Value loss of the first step: half the mean square of the scores; then it falls on the same episodes."""
    learner = Learner(make_config(minibatch_rows=1000, **CASES["critic"]), model_path, rank_group)
    losses = [learner.train(make_groups(0)).metrics["loss/value"] for _ in range(8)]
    scores = [episode.total_reward - 0.1 * (not step.valid) for group in make_groups(0) for episode in group
              for step in episode.steps for _ in step.response_ids]
    discount = CASES["critic"]["credit"]["lam"]
    assert discount < 1  # so only the last token's return is the whole score while all values are 0
    lengths = [len(step.response_ids) for group in make_groups(0) for episode in group for step in episode.steps]
    firsts = np.cumsum(lengths) - lengths
    targets = [scores[first] * discount ** (n - 1 - k) for first, n in zip(firsts, lengths, strict=True)
               for k in range(n)]
    assert losses[0] == pytest.approx(np.mean(np.square(targets)) / 2, rel=1e-5)
    assert losses[-1] < losses[0]


def test_a_steps_credit_is_the_mean_of_its_token_advantages(model_path, rank_group):
    """Checks the report's advantages, which the archive and the metrics use: for a new critic at γ = λ = 1, whitened
    scores."""
    options = CASES["critic"] | {"credit": {"estimator": "ppo", "gamma": 1.0, "lam": 1.0}}
    report = Learner(make_config(**options, token_budget=64), model_path, rank_group).train(make_groups(0))
    steps = [(step, episode.total_reward - 0.1 * (not step.valid)) for group in make_groups(0) for episode in group
             for step in episode.steps]
    tokens = np.repeat([score for _, score in steps], [len(step.response_ids) for step, _ in steps])
    expected = [(score - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8) for _, score in steps]
    found = [a for credit in report.credits for row in credit.advantages for a in row]
    assert found == pytest.approx(expected, abs=1e-5)
    low, high = np.percentile(expected, [25, 75])
    assert report.metrics["credit/advantage_iqr"] == pytest.approx(high - low, abs=1e-5)


def test_values_are_float32_where_the_body_computes_in_bfloat16(model_path, rank_group, rows, packs):
    """With a bias of 1000.5 and no weights, bfloat16 would give 1000; and a step trains."""
    config = make_config(**CASES["critic"])
    half = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})})
    critic = make_critic(half.learner, model_path, rank_group, Layout(), half=True)
    with torch.no_grad():
        critic.trained_model.model.head.bias.to_local().fill_(1000.5)
    assert set(critic.outputs(packs, rows)[0].values.tolist()) == {1000.5}
    assert np.isfinite(Learner(half, model_path, rank_group).train(make_groups(0)).metrics["loss/value"])
