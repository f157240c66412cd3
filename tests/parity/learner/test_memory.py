"""The plan's bytes against what autograd and FSDP hold; computed twice or once, gradients are the same."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from learner_tiny import CASES, make_config, make_groups, make_step, weights
from torch.distributed.tensor import DTensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from lab.bench.tiny_families import FAMILIES, make_family
from learner import step
from learner.model.loading import empty_model
from learner.model.memory import (
    Layout,
    Shape,
    Training,
    decide_checkpointing,
    fits,
    memory,
    saved_per_token,
    shape_of,
    stays_gathered,
    training_of,
)
from learner.model.policy import empty_policy, frozen_reference, load_policy, shape_in
from learner.model.sharding import shard
from learner.rows.packing import make_rows, pack_rows
from learner.trainer import Learner
from services.errors import UserError

QWEN_1_5B = Shape(parameters=1_543_714_304, layers=28, hidden=1536, intermediate=8960, heads=12, queries=1536, keys=256,
                  vocabulary=151_936, tied=True)
QWEN_7B = Shape(parameters=7_615_616_512, layers=28, hidden=3584, intermediate=18944, heads=28, queries=3584, keys=512,
                vocabulary=152_064, tied=False)


@pytest.fixture(scope="module")
def wide_path(tmp_path_factory):
    """Provides a model so wide that the counted parts outweigh indices and positions."""
    folder = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(
        vocab_size=97, hidden_size=128, intermediate_size=320, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pack():
    rng = np.random.default_rng(0)
    steps = [make_step(rng) for _ in range(40)]
    rows = make_rows(steps, advantages=[1.0] * 40, temperatures=[1.0] * 40, stale=[False] * 40)
    return pack_rows(rows, np.flatnonzero(rows.lengths == rows.lengths[0]))


def sharded(folder, rank_group, *, checkpointing=False, half=False, **layout):
    policy, found = empty_policy(folder)
    shard(policy, policy.body, found, rank_group.mesh, layout=Layout(checkpointing=checkpointing, **layout), half=half)
    return policy


def saved_bytes(body, pack):
    """Returns the bytes of distinct storages that autograd keeps, without parameters."""
    held, own = {}, set()

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    body(input_ids=pack.tokens, position_ids=pack.positions, use_cache=False, pack=pack)  # gathers the weights
    own |= {p.untyped_storage().data_ptr() for p in body.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = body(input_ids=pack.tokens, position_ids=pack.positions, use_cache=False, pack=pack).last_hidden_state
    assert out.requires_grad
    return sum(held.values())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_saved_activations_are_those_that_the_formula_says(wide_path, rank_group, pack, half, checkpointing):
    policy, found = empty_policy(wide_path)
    found.fill(policy, "cpu", torch.bfloat16 if half else torch.float32)
    if checkpointing:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for i, layer in enumerate(policy.body.layers):
            policy.body.layers[i] = checkpoint_wrapper(layer)
    measured = saved_bytes(policy.body, pack) / pack.tokens.shape[1]
    assert saved_per_token(shape_in(policy), half=half, checkpointing=checkpointing, grid=True) == pytest.approx(
        measured, rel=0.02)


@pytest.mark.parametrize("half", [False, True])
def test_capped_scores_are_saved_in_full(tmp_path, rank_group, half):
    """Rows of 80 tokens save more per token than rows of 40, by as much as the formula says."""
    (family,) = (one for one in FAMILIES if one.name == "Gemma 2")
    policy, found = empty_policy(make_family(family, tmp_path / "model"))
    found.fill(policy, "cpu", torch.bfloat16 if half else torch.float32)
    shape, measured, said = shape_in(policy), [], []
    assert shape.capped
    for length in (40, 80):
        whole = pack_rows(rows_of(length), np.arange(4))
        measured.append(saved_bytes(policy.body, whole) / (4 * length))
        said.append(saved_per_token(shape, half=half, checkpointing=False, longest=length))
    assert said[1] - said[0] == pytest.approx(measured[1] - measured[0], rel=0.02)


def rows_of(length):
    """Returns four rows of as many tokens."""
    rng = np.random.default_rng(0)
    steps = [msgspec.structs.replace(make_step(rng), prompt_ids=rng.integers(3, 97, length - 4, dtype=np.int32),
                                     response_ids=rng.integers(3, 97, 4, dtype=np.int32),
                                     logprobs=np.zeros(4, dtype=np.float32)) for _ in range(4)]
    return make_rows(steps, advantages=[1.0] * 4, temperatures=[1.0] * 4, stale=[False] * 4)


def test_a_model_with_capped_scores_is_computed_twice_where_its_scores_do_not_fit():
    """gemma-2-2b with adapters: without its scores it takes 58 GiB, and they are 52 with rows of 2,048 tokens."""
    shape = Shape(parameters=2_614_341_888, layers=26, hidden=2304, intermediate=9216, heads=8, queries=2048, keys=1024,
                  vocabulary=256_000, tied=True, capped=True)
    training = Training(tokens=16_384, adapters=20_766_720, longest=2048)
    assert fits(training, replace(shape, capped=False), 80 << 30)
    assert not fits(training, shape, 80 << 30)
    assert fits(replace(training, checkpointing=True), shape, 80 << 30)


def test_the_sizes_that_a_review_measured():
    """Measured by hooks on one layer in bfloat16: 3.0 MB a token at 1.5B and 6.5 at 7B."""
    assert saved_per_token(QWEN_1_5B, half=True, checkpointing=False) == pytest.approx(3.0e6, rel=0.05)
    assert saved_per_token(QWEN_7B, half=True, checkpointing=False) == pytest.approx(6.5e6, rel=0.05)
    assert saved_per_token(QWEN_7B, half=True, checkpointing=True) < 0.25e6


def test_auto_checkpoints_what_does_not_fit():
    def config_of(checkpointing):
        made = make_config(token_budget=16384, gpus=1, checkpointing=checkpointing)
        return made.model_copy(update={"model": made.model.model_copy(update={"dtype": "bfloat16"})})

    training = training_of(config_of("auto"), critic=False)
    assert not decide_checkpointing(training, QWEN_1_5B, "auto", 141 << 30).checkpointing
    assert decide_checkpointing(training, QWEN_1_5B, "auto", 80 << 30).checkpointing
    assert not decide_checkpointing(training, QWEN_7B, "auto", None).checkpointing
    never, always = (training_of(config_of(value), critic=False) for value in (False, True))
    assert not decide_checkpointing(never, QWEN_1_5B, False, 80 << 30).checkpointing
    assert decide_checkpointing(always, QWEN_1_5B, True, 141 << 30).checkpointing


def test_a_7b_model_fits_a_141_gb_gpu_once_the_moments_lie_in_host_memory():
    base = {"tokens": 16384, "checkpointing": True}
    assert memory(QWEN_7B, Training(**base)).total > 141e9 * 0.9
    assert memory(QWEN_7B, Training(**base, offload=True)).total < 141e9 * 0.9
    assert stays_gathered(QWEN_1_5B)
    assert not stays_gathered(QWEN_7B)
    assert memory(QWEN_7B, Training(**base, shards=8, ranks=8)).total < 80e9 * 0.9


def test_a_critic_stays_whole_beside_the_policy_between_the_packs_of_several_ranks(model_path, rank_group, monkeypatch):
    """In float32 each of both has 4 P of weights and 4 P of gradients that are not reduced yet."""
    learner = Learner(make_config(**CASES["critic"] | {"minibatch_rows": 1000, "token_budget": 64}), model_path,
                      rank_group)
    learner.stepper.reduces_once = True  # as on several ranks
    held, sync = [], step.sync_gradients

    def look(model, *, once, last):
        if last:
            found = [each for each in model.parameters() if not isinstance(each, DTensor)]
            held.append(sum(each.nbytes + each.grad.nbytes for each in found))
        sync(model, once=once, last=last)

    monkeypatch.setattr(step, "sync_gradients", look)
    learner.train(make_groups(0))
    assert len(held) == 2
    planned = memory(learner.shape, Training(tokens=64, shards=2, ranks=2, half=False, critic=True))
    assert planned.gathered == 16 * learner.shape.parameters == pytest.approx(sum(held), rel=0.01)


@pytest.mark.parametrize("half", [False, True])
def test_checkpointed_layers_give_the_same_gradients(any_model_path, rank_group, pack, half):
    results = []
    for layout in ({}, {"checkpointing": True}, {"checkpointing": True, "gathered": False}):
        policy = sharded(any_model_path, rank_group, half=half, **layout)
        logp, entropy = policy(pack)
        (logp.sum() + entropy.sum()).backward()
        results.append([logp, *(p.grad.full_tensor() for p in policy.parameters())])
    for once, twice, in_turn in zip(*results, strict=True):
        assert torch.equal(once, twice)
        assert torch.equal(once, in_turn)


def test_a_learner_that_checkpoints_takes_the_same_step(model_path, rank_group):
    """The config's key, through save-free training to the exported names."""
    plain, checkpointed = (Learner(make_config(checkpointing=wanted, **CASES["token-tokens"]), model_path, rank_group)
                           for wanted in (False, True))
    for learner in (plain, checkpointed):
        learner.train(make_groups(0))
    first, second = weights(plain), weights(checkpointed)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_bfloat16_reference_gives_what_rounding_at_each_use_gave(any_model_path, rank_group, pack):
    reference = frozen_reference(any_model_path, rank_group.mesh, layout=Layout(), half=True)
    assert {p.dtype for p in reference.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in reference.parameters())
    assert torch.equal(reference(pack)[0], sharded(any_model_path, rank_group, half=True)(pack)[0])


def test_an_empty_model_has_no_storage_and_fills_from_files_of_any_names(any_model_path, pack, tmp_path):
    """Files that call the weights otherwise go through transformers' own loader."""
    hf, _ = empty_model(any_model_path, "eager")
    assert all(p.is_meta for p in hf.parameters())
    assert not any(b.is_meta for b in hf.buffers())
    from safetensors.torch import load_file, save_file

    tensors = load_file(any_model_path / "model.safetensors")
    save_file({name.removeprefix("model."): value for name, value in tensors.items()}, tmp_path / "model.safetensors",
              metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((any_model_path / "config.json").read_bytes())
    assert torch.equal(load_policy(tmp_path)(pack)[0], load_policy(any_model_path)(pack)[0])


def test_a_folder_without_a_model_is_refused(tmp_path, any_model_path):
    (tmp_path / "config.json").write_bytes((any_model_path / "config.json").read_bytes())
    with pytest.raises(UserError, match="holds no causal language model"):
        load_policy(tmp_path)
    with pytest.raises(UserError, match="holds no causal language model"):
        load_policy(tmp_path / "nothing")


def test_the_shape_of_a_config():
    assert shape_of({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
                     "intermediate_size": 160, "vocab_size": 100, "tie_word_embeddings": True}, 7) == Shape(
        parameters=7, layers=3, hidden=64, intermediate=160, heads=4, queries=64, keys=32, vocabulary=100, tied=True)
