"""Tiny random models of published families: packs equal the model's own code, and the probe refuses a broken one."""

import re

import numpy as np
import pytest
import torch
from learner_tiny import make_config
from transformers import AutoModelForCausalLM, Gemma4TextConfig

from lab.bench.tiny_families import FAMILIES, make_family
from learner.model import attention, family
from learner.model import policy as module
from learner.model import probe as probing
from learner.model.loading import plain_model, skeleton
from learner.model.policy import load_policy
from learner.model.probe import Probe
from learner.rows.packing import make_rows, pack_rows
from learner.trainer import Learner
from services.answer_end import generation_ends
from services.errors import UserError
from services.records import Step, Version, VersionSpan

BY_NAME = {family.name: family for family in FAMILIES}
MIXTURES = ("GPT-OSS", "Qwen3 MoE")
DENSE = [name for name in BY_NAME if name not in MIXTURES]
LENGTHS = ((40, 9), (25, 5), (61, 3), (12, 8))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Makes each family's model once, when it is first asked for."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = make_family(BY_NAME[name], tmp_path_factory.mktemp("family"))
        return made[name]

    return folder


@pytest.fixture(scope="module")
def rows():
    return rows_with(np.zeros(sum(r for _, r in LENGTHS), dtype=np.float32))


def rows_with(logprobs):
    """Returns rows of random tokens with these sampler logprobs."""
    rng, start, steps = np.random.default_rng(0), 0, []
    for p, r in LENGTHS:
        span = VersionSpan(version=Version(incarnation=1, step=0), start=0, end=r)
        steps.append(Step(
            observation="s", prompt_ids=rng.integers(3, 384, p, dtype=np.int32), spans=[span], action="go", valid=True,
            response_ids=rng.integers(3, 384, r, dtype=np.int32), logprobs=logprobs[start:start + r],
            admissible=True, reward=0.0))
        start += r
    return make_rows(steps, advantages=[1.0, -1.0, 0.5, 0.0], temperatures=[1.0, 0.4, 1.0, 0.7], stale=[False] * 4)


def probe(rank_group, *, half=False):
    return Probe(rank_group=rank_group, token_budget=1024, half=half)


@pytest.mark.parametrize("name", DENSE)
def test_a_family_is_computed_as_its_own_code_does(folders, rank_group, rows, name):
    """In float32 the difference is within the probe's bound, and every weight has a gradient."""
    policy = load_policy(folders(name))
    probe(rank_group).check_packs(policy, rows)
    logprobs, entropies = policy(pack_rows(rows, np.arange(4)))
    (logprobs.sum() + entropies.sum()).backward()
    assert [n for n, p in policy.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()] == []


@pytest.mark.parametrize("name", DENSE)
def test_a_family_is_loaded_as_transformers_loads_it(folders, name):
    """Also its buffers that files hold: the scale of each layer of Gemma 4."""
    wanted = AutoModelForCausalLM.from_pretrained(folders(name), dtype=torch.float32).state_dict()
    found = load_policy(folders(name)).hf.state_dict()
    assert found.keys() == wanted.keys()
    assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


@pytest.mark.parametrize("name", DENSE)
def test_a_cold_start_trains_the_model_that_the_learner_trains(folders, name):
    """transformers' default attention leaves out the caps of Gemma 2, by 2.5 in these logits."""
    tokens = torch.from_numpy(np.random.default_rng(1).integers(3, 384, (1, 30)))
    policy = load_policy(folders(name))
    policy.hf.set_attn_implementation(attention.OWN_ATTENTION)
    with torch.no_grad():
        found, wanted = (hf(input_ids=tokens, use_cache=False).logits
                         for hf in (plain_model(folders(name), "float32"), policy.hf))
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


def test_a_cold_start_can_save_a_model_with_any_generation_config(tmp_path):
    """transformers loads a temperature without do_sample, as older chat models have it, and refuses to save it: the
    minutes of the cold start were lost. The tokens that end answers stay."""
    folder = make_family(BY_NAME["Llama 3"], tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 7], "temperature": 0.9, "top_p": 0.6}')
    plain_model(folder, "float32").save_pretrained(tmp_path / "out")
    assert generation_ends(tmp_path / "out") == (1, 7)


@pytest.mark.parametrize("name", ["Gemma 2", "Qwen3.5"])
def test_a_family_is_within_the_bound_of_bfloat16(folders, rank_group, rows, name):
    probe(rank_group, half=True).check_packs(load_policy(folders(name)).to(torch.bfloat16), rows)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_of_experts_is_refused_by_name(folders, name):
    with pytest.raises(UserError, match=f"{BY_NAME[name].config.removesuffix('Config')[:3].lower()}.* 4 experts"):
        load_policy(folders(name))


def test_the_attention_sinks_of_gpt_oss_are_computed(folders, rank_group, rows, monkeypatch):
    """GPT-OSS's mixture of experts is refused, but its attention is right."""
    monkeypatch.setattr(family, "EXPERT_KEYS", ())
    probe(rank_group).check_packs(load_policy(folders("GPT-OSS")), rows)


@pytest.mark.parametrize(("size", "wanted"), [(256, False), (512, True)])
def test_heads_that_are_too_large_for_flash_attention_get_a_rectangle(size, wanted):
    """The full attention of the published Gemma 4 models has heads of 512 numbers, its windows have 256."""
    settings = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
                "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"]}
    hf = skeleton(Gemma4TextConfig(**settings, head_dim=256, global_head_dim=size))
    assert family.needs_grid(hf) == wanted


def without(**arguments):
    """Overrides arguments of the packed attention, like an implementation that does not support them."""
    whole = attention.packed_attention

    def broken(*args, **named):
        return whole(*args, **{**named, **{name: value for name, value in arguments.items() if name in named}})

    return broken


BREAKS = {
    "Gemma 2": [{"softcap": None}, {"sliding_window": None}], "Gemma 3": [{"sliding_window": None}],
    "Mistral": [{"sliding_window": None}], "GPT-OSS": [{"s_aux": None}], "Granite": [{"scaling": None}],
    "OLMo 3": [{"sliding_window": None}]}


@pytest.mark.parametrize(("name", "broken"), [(name, broken) for name, cases in BREAKS.items() for broken in cases],
                         ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_the_probe_refuses_attention_without_a_feature(folders, rank_group, rows, monkeypatch, name, broken):
    from transformers import AttentionInterface

    monkeypatch.setattr(family, "EXPERT_KEYS", ())
    policy = load_policy(folders(name))
    monkeypatch.setitem(AttentionInterface._global_mapping, attention.ATTENTION, without(**broken))
    with pytest.raises(UserError, match=f"family {policy.hf.config.model_type} .* a row that is packed"):
        probe(rank_group).check_packs(policy, rows)


@pytest.mark.parametrize("name", ["Gemma 2", "Granite", "Cohere"])
def test_the_probe_refuses_logits_without_their_cap_or_scale(folders, rank_group, rows, monkeypatch, name):
    monkeypatch.setattr(module, "logits_function", lambda hf: hf.get_output_embeddings())
    with pytest.raises(UserError, match="a row that is packed"):
        probe(rank_group).check_packs(load_policy(folders(name)), rows)


def test_the_probe_refuses_a_state_that_leaks_from_row_to_row(folders, rank_group, rows, monkeypatch):
    monkeypatch.setattr(module, "carries_state", lambda hf: False)
    with pytest.raises(UserError, match="family qwen3_5_text"):
        probe(rank_group).check_packs(load_policy(folders("Qwen3.5")), rows)


def test_a_learner_that_disagrees_with_its_sampler_is_refused_before_it_trains(folders, rank_group, rows):
    """The difference is 0.01 nats a token. The same batch with the right logprobs is trained on."""
    folder = folders("Llama 3")
    with torch.no_grad():
        packed = pack_rows(rows, np.arange(4))
        true = load_policy(folder)(packed)[0].numpy()
    learner = Learner(make_config(token_budget=1024), folder, rank_group, probed=True)
    before = [value.clone() for _, value in learner.state_dict_for_sampler()]
    with pytest.raises(UserError, match=r"differs from what the sampler reported by 0\.01 nats"):
        learner._train(rows_with(true + np.float32(0.01)), _timer())
    after = [value for _, value in learner.state_dict_for_sampler()]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    true[3] = -np.inf  # such a token says nothing of the others
    again = Learner(make_config(token_budget=1024), folder, rank_group, probed=True)
    assert again._train(rows_with(true), _timer()).mismatch == ""


def test_a_later_disagreement_with_the_sampler_is_told_and_trained_on(folders, rank_group, rows):
    """The learner's own logprobs agree again. The probe's passes leave no old weights for the steps after it."""
    learner, unprobed = (Learner(make_config(token_budget=1024), folders("Llama 3"), rank_group, probed=probed)
                         for probed in (True, False))

    def mismatch(wrong):
        with torch.no_grad():
            own = learner.policy(pack_rows(rows, np.arange(4)))[0].numpy()
        return learner._train(rows_with(own + np.float32(wrong)), _timer()).mismatch

    assert mismatch(0.0) == ""
    assert re.fullmatch(r"0\.01 nats a token, and float32 explains \S+e-05", mismatch(0.01))
    assert mismatch(0.0) == ""
    assert learner.step == 3
    for _ in range(3):
        unprobed._train(rows, _timer())
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(
        learner.state_dict_for_sampler(), unprobed.state_dict_for_sampler(), strict=True))


@pytest.mark.parametrize(("most", "longest"), [(50, 49), (10, 10), (4, 4)])
def test_the_probe_computes_no_row_whose_scores_would_fill_a_gpu(folders, rank_group, rows, monkeypatch, most, longest):
    """The model's own attention holds all scores of a row. If all rows are too long, the end of one is compared: 9
    tokens of its response after one of its prompt, or the last 3 tokens of its response."""
    monkeypatch.setattr(probing, "LONGEST", most)
    policy, seen = load_policy(folders("Qwen2, Qwen2.5")), []
    policy.register_forward_pre_hook(lambda _, given: seen.append(given[0].longest))
    probe(rank_group).check_packs(policy, rows)
    assert max(seen) == longest


def test_the_probe_compares_the_end_of_a_row_of_any_length(folders, rank_group, rows, monkeypatch):
    monkeypatch.setattr(probing, "LONGEST", 10)
    monkeypatch.setattr(module, "logits_function", lambda hf: hf.get_output_embeddings())
    with pytest.raises(UserError, match="a row that is packed"):
        probe(rank_group).check_packs(load_policy(folders("Cohere")), rows)


def _timer():
    from learner.step import Timer

    return Timer()


@pytest.mark.parametrize(("config", "reason"), [
    ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "longrope"),
    ({"model_type": "gemma3", "vision_config": {}}, "images"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "encoder"),
    ({"model_type": "qwen3_moe", "num_experts": 128}, "128 experts")])
def test_a_family_is_refused_by_its_config_before_anything_is_loaded(config, reason):
    assert reason in (family.refusal(config) or "")


def test_a_dense_model_is_not_refused():
    assert family.refusal({"model_type": "qwen2", "num_local_experts": 1, "rope_scaling": None}) is None
