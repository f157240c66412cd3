"""Adapters: merged weights are the same model, the model without adapters is the reference, checkpoints have only
adapters."""

import json

import numpy as np
import pytest
import torch
from learner_tiny import VARIANTS, make_config, make_groups, make_model, make_step, weights
from safetensors import safe_open
from safetensors.torch import load_file
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from lab.bench.tiny_families import FAMILIES, make_family
from learner.checkpoints.export import write_adapter
from learner.model.lora import DOWN, UP, LoraLinear, add_adapters
from learner.model.memory import adapter_parameters
from learner.model.policy import full_tensor, load_policy, shape_in
from learner.rows.packing import make_rows, pack_rows
from learner.trainer import Learner
from services.config.sections import LoraSection
from services.errors import UserError

LORA = VARIANTS["lora"]


@pytest.fixture(scope="module")
def pack():
    rng = np.random.default_rng(1)
    rows = make_rows([make_step(rng) for _ in range(6)], advantages=[1.0] * 6, temperatures=[1.0] * 6,
                     stale=[False] * 6)
    return pack_rows(rows, np.arange(6))


@pytest.fixture(scope="module")
def trained(any_model_path, rank_group):
    learner = Learner(make_config(**LORA), any_model_path, rank_group)
    reports = [learner.train(make_groups(seed, step=seed)) for seed in range(2)]
    return learner, reports


def test_merged_weights_are_the_model_that_the_learner_computes_with(trained, pack, tmp_path, any_model_path):
    """Samplers get weights with the names and shapes of the model and the learner's logprobs."""
    learner, _ = trained
    learner.export(tmp_path / "hf")
    adapted = learner.policy(pack)[0]
    torch.testing.assert_close(load_policy(tmp_path / "hf")(pack)[0], adapted, atol=1e-5, rtol=0)
    assert (load_policy(any_model_path)(pack)[0] - adapted).abs().max() > 1e-3
    initial = load_policy(any_model_path).hf.state_dict()
    sent = weights(learner)
    assert {name: value.shape for name, value in sent.items()} == {k: v.shape for k, v in initial.items()}
    moved = {name for name in sent if not torch.equal(sent[name], initial[name])}
    assert moved == {name for name in sent if name.endswith("proj.weight")}


def test_an_exported_adapter_beside_the_base_model_is_the_trained_model(trained, tmp_path, any_model_path):
    """peft's format: W + alpha / r B A of each layer, with the base model's names."""
    learner, _ = trained
    learner.save(tmp_path).result(60)
    write_adapter(tmp_path, tmp_path / "adapter", learner.config.learner.lora, base="tiny")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, "tiny")
    found, left = load_file(tmp_path / "adapter/adapter_model.safetensors"), set()
    base, sent = load_policy(any_model_path).hf.state_dict(), weights(learner)
    for name, weight in sent.items():
        low, high = (f"base_model.model.{name.removesuffix('weight')}lora_{part}.weight" for part in "AB")
        left |= {low, high} & found.keys()
        change = 2 * found[high] @ found[low] if high in found else 0
        torch.testing.assert_close(weight, base[name] + change, atol=1e-6, rtol=0)
    assert left == found.keys()


def test_vllm_reads_an_exported_adapter(trained, tmp_path):
    learner, _ = trained
    learner.save(tmp_path).result(60)
    write_adapter(tmp_path, tmp_path / "adapter", learner.config.learner.lora, base="tiny")
    helper = PEFTHelper.from_local_dir(str(tmp_path / "adapter"), max_position_embeddings=None)
    read = LoRAModel.from_local_checkpoint(str(tmp_path / "adapter"), set(learner.config.learner.lora.targets), helper,
                                           lora_model_id=1, device="cpu", dtype=torch.float32)
    assert helper.vllm_lora_scaling_factor == 2
    own = {name: module for name, module in learner.policy.hf.named_modules() if isinstance(module, LoraLinear)}
    assert read.loras.keys() == own.keys()
    for name, module in own.items():
        assert torch.equal(read.loras[name].lora_a, full_tensor(module.lora_a))
        assert torch.equal(read.loras[name].lora_b, full_tensor(module.lora_b))


def test_without_its_adapters_the_model_is_the_reference(trained, pack, any_model_path, rank_group):
    learner, reports = trained
    reference = learner.stepper.reference
    assert torch.equal(reference(pack)[0], Learner(make_config(), any_model_path, rank_group).policy(pack)[0])
    assert reports[1].metrics["loss/kl"] > 0
    assert not torch.equal(reference(pack)[0], learner.policy(pack)[0])


def test_a_checkpoint_holds_the_adapters_alone_and_resumes_to_the_bit(trained, tmp_path, any_model_path, rank_group):
    learner, _ = trained
    learner.save(tmp_path).result(60)
    names = set()
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names |= set(opened.keys())
    assert {name.rpartition(".")[2] for name in names if name.startswith("model.")} == {DOWN, UP}
    resumed = Learner(make_config(**LORA), any_model_path, rank_group)
    resumed.load(tmp_path)
    learner.train(make_groups(5, step=2))
    resumed.train(make_groups(5, step=2))
    first, second = weights(learner), weights(resumed)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_adapters_are_those_of_the_formula_and_start_as_nothing(model_path, rank_group, pack):
    """In bfloat16 the frozen weights take two bytes, the adapters keep four. The plan counts the same parameters."""
    config = make_config(**LORA)
    half = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})})
    learner = Learner(half, model_path, rank_group)
    layers = [module for module in learner.policy.modules() if isinstance(module, LoraLinear)]
    assert len(layers) == 7 * 2
    assert {layer.weight.dtype for layer in layers} == {torch.bfloat16}
    assert {layer.lora_a.dtype for layer in layers} == {torch.float32}
    trained = [p for p in learner.policy.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == adapter_parameters(learner.shape, config.learner.lora)
    assert torch.equal(learner.policy(pack)[0], learner.stepper.reference(pack)[0])
    assert np.isfinite(learner.train(make_groups(0)).metrics["grad_norm"])


@pytest.mark.parametrize(("family", "targets", "counted"), [
    ("Phi 3, Phi 4", ("qkv_proj", "gate_up_proj"), True), ("Phi 2", ("dense", "fc1"), False)])
def test_the_plan_counts_adapters_of_layers_with_other_names(tmp_path, family, targets, counted):
    """Without any, the plan would be that of training all weights. Layers of unknown names are counted roughly."""
    (chosen,) = (one for one in FAMILIES if one.name == family)
    policy = load_policy(make_family(chosen, tmp_path))
    config, shape = make_config(lora={"rank": 4, "targets": targets}), shape_in(policy)
    add_adapters(policy, config.learner.lora, seed=0)
    real = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    planned = adapter_parameters(shape, config.learner.lora)
    assert planned == real if counted else real / 2 < planned < real * 2


def test_targets_that_the_model_lacks_are_refused(model_path, rank_group):
    with pytest.raises(UserError, match=r"targets names no layer of this model \(c_attn\)") as caught:
        Learner(make_config(lora={"rank": 2, "targets": ["c_attn"]}), model_path, rank_group)
    assert "down_proj, gate_proj" in str(caught.value)
    assert json.loads((model_path / "config.json").read_text())["model_type"] == "qwen2"


def test_one_target_that_the_model_lacks_is_refused_unless_it_is_of_the_default():
    """A misspelt name trained fewer adapters than were asked for. Families that fuse layers lack names of the default.
    """
    fused = torch.nn.ModuleDict({"qkv_proj": torch.nn.Linear(4, 12), "o_proj": torch.nn.Linear(4, 4)})
    with pytest.raises(UserError, match=r"targets names no layer of this model \(v_porj\)"):
        add_adapters(fused, LoraSection(rank=2, targets=("o_proj", "v_porj")), seed=0)
    add_adapters(fused, LoraSection(rank=2), seed=0)
    assert [name for name, module in fused.items() if isinstance(module, LoraLinear)] == ["o_proj"]


def test_a_head_that_is_the_embeddings_too_is_no_target(model_path, rank_group):
    """Exports leave it out, and samplers on GPUs do not read it: its adapter would be trained and then lost."""
    with pytest.raises(UserError, match=r"learner.lora.targets names lm_head, .* embeddings too"):
        Learner(make_config(lora={"rank": 2, "targets": ["q_proj", "lm_head"]}), model_path, rank_group)


def test_a_head_of_its_own_is_a_target(tmp_path, rank_group, pack):
    model = make_model(tmp_path / "model", tied=False)
    learner = Learner(make_config(lora={"rank": 2, "targets": ["lm_head"]}), model, rank_group)
    learner.train(make_groups(0))
    learner.export(tmp_path / "hf")
    torch.testing.assert_close(load_policy(tmp_path / "hf")(pack)[0], learner.policy(pack)[0], atol=1e-5, rtol=0)
