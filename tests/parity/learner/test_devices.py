"""A learner step on a GPU mixes no tensors of GPU and CPU, and computes what it computes on a CPU.

There is no GPU here: tests/toys/pretended_cuda.py stands in for one, and raises as CUDA would. FSDP needs a real one,
so one rank has the whole model.
"""

import copy
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from learner_tiny import CASES, VARIANTS, make_config, make_groups
from torch import nn

from learner.cold_start.rank_training import train_on_ranks
from learner.cold_start.sft import Budget
from learner.cold_start.sft_data import TokenRow
from learner.credit.registry import estimator
from learner.critic import Critic, ValueModel
from learner.model import policy as policies
from learner.model.host_memory import HostOffload
from learner.model.lora import add_adapters
from learner.model.memory import SharedDevice
from learner.model.policy import empty_policy, initial_policy
from learner.model.probe import Probe
from learner.model.trained_model import TrainedModel
from learner.rank_group import grow_segments
from learner.rows.batch import assign_credit, rows_of
from learner.step import Stepper, Timer
from services.config.sections import SftSection
from services.errors import UserError
from services.weights.shared_memory import exported
from tests.toys.pretended_cuda import GPU, OnGpu, pretended_cuda

SETTINGS = {
    "sequence": CASES["sequence-actions"], "coupled": CASES["coupled"], "critic": CASES["critic"],
    "turns": {**CASES["critic"], "credit": {"estimator": "ppo", "values": "turns"}}, "lora": VARIANTS["lora"],
    "offload": {**CASES["sequence-actions"], "offload": True}}


def filled(path, device, prepare=lambda _: None):
    policy, weights = empty_policy(path)
    prepare(policy)
    weights.fill(policy, device, torch.float32)
    return policy.to(device)


def make_stepper(config, path, rank_group, device):
    """Returns the stepper of one rank, as learner/trainer.py makes it, but without FSDP."""
    section, rank_group = config.learner, copy.copy(rank_group)
    rank_group.device = torch.device(device)
    policy = filled(path, device, lambda policy: section.lora.rank and add_adapters(policy, section.lora, seed=0))
    reference = initial_policy(policy) if section.lora.rank else filled(path, device).requires_grad_(False)
    critic = None
    if estimator(section.credit.estimator).needs_critic:
        model = ValueModel(filled(path, device).body, policy.hf.config.hidden_size)
        model.head.to(device)
        critic = Critic(trained_model=TrainedModel(model, section, lr=section.critic_lr), rank_group=rank_group,
                        section=section)
    return Stepper(policy=TrainedModel(policy, section, lr=section.lr), reference=reference, critic=critic,
                   rank_group=rank_group,
                   section=section, probe=Probe(rank_group=rank_group, token_budget=section.token_budget, half=False))


def two_steps(config, path, rank_group, device):
    """Returns the metrics of two steps, and the weights after them. The states wait in host memory between the two."""
    stepper = make_stepper(config, path, rank_group, device)
    models = [trained_model.model for trained_model in stepper.trained_models]
    models += [stepper.reference] if isinstance(stepper.reference, nn.Module) else []
    moved = HostOffload(stepper.rank_group.device, models, [each.optimizer for each in stepper.trained_models])
    taken = []
    for seed in range(2):
        groups = make_groups(seed, step=seed, count=1, size=2)
        rows = rows_of(groups, assign_credit(groups, config.learner.credit), policy_step=seed + 1)
        moved.onload()
        taken.append(stepper.take(rows, Timer(device=stepper.rank_group.device)))
        moved.offload()
    return taken, {f"{i} {name}": value for i, one in enumerate(models) for name, value in one.state_dict().items()}


@pytest.mark.parametrize("case", SETTINGS)
def test_steps_on_a_gpu_mix_no_devices_and_equal_those_on_a_cpu(model_path, rank_group, monkeypatch, case):
    monkeypatch.setattr(policies, "LOGITS_AT_ONCE", 97 * 20)  # some packs take their logits in slices
    config = make_config(**SETTINGS[case])
    expected, on_cpu = two_steps(config, model_path, rank_group, "cpu")
    with pretended_cuda(monkeypatch):
        found, offloaded = two_steps(config, model_path, rank_group, GPU)
    for one, other in zip(found, expected, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-5, nan_ok=True)
    for name, value in on_cpu.items():
        assert not isinstance(offloaded[name], OnGpu), name
        # Each update moves a weight by up to the learning rate, also by a gradient that is hardly more than rounding.
        torch.testing.assert_close(offloaded[name], value, rtol=1e-5, atol=config.learner.lr / 10)


def test_a_cold_start_on_a_gpu_mixes_no_devices_and_equals_that_on_a_cpu(model_path, rank_group, monkeypatch):
    sft, rng = SftSection(batch_rows=3, prompt_loss=0.5), np.random.default_rng(0)
    rows = [TokenRow(ids=rng.integers(1, 97, 20, dtype=np.int32), prompt_tokens=9) for _ in range(6)]

    def imitated(device):
        stepper = make_stepper(make_config(), model_path, rank_group, device)
        made = train_on_ranks(SimpleNamespace(stepper=stepper, rank_group=stepper.rank_group), rows, sft,
                              budget=Budget(updates=3), seed=0, report=lambda _: None)
        return made, {name: value.detach() for name, value in stepper.policy.model.state_dict().items()}

    expected, on_cpu = imitated("cpu")
    with pretended_cuda(monkeypatch):
        found, on_gpu = imitated(GPU)
        on_gpu = {name: value.cpu() for name, value in on_gpu.items()}
    assert (found.loss_response, found.loss_prompt) == pytest.approx(
        (expected.loss_response, expected.loss_prompt), rel=1e-4)
    for name, value in on_cpu.items():
        torch.testing.assert_close(on_gpu[name], value, rtol=1e-5, atol=sft.lr / 100)


def test_the_allocator_of_a_learner_leaves_a_sampler_its_place(rank_group, monkeypatch):
    """A GPU of 100 GiB: 5 stay free, 35 are the sampler's, and 3 of the learner's 60 hold the version that it sends."""
    bounds, rank_group = [], copy.copy(rank_group)
    rank_group.device = GPU
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=100 << 30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *bound: bounds.append(bound))
    assert rank_group.device_bytes(0.6) == 60 << 30
    assert bounds == []
    shared = SharedDevice(occupied=35 << 30, sends=3 << 30)
    assert rank_group.device_bytes(0.6, shared) == 57 << 30
    assert bounds == [(pytest.approx(0.6), GPU)]
    with pytest.raises(UserError, match=r"sampler and contexts take 95\.0 GiB of a GPU of 100\.0 GiB"):
        rank_group.device_bytes(0.6, SharedDevice(occupied=95 << 30, sends=0))


@pytest.fixture
def allocator_settings():
    """Provides a function that returns the settings of torch's allocator, and takes back what a test sets."""
    before = torch._C._accelerator_getAllocatorSettings()
    torch._C._accelerator_setAllocatorSettings("")
    yield torch._C._accelerator_getAllocatorSettings
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    torch._C._accelerator_setAllocatorSettings(before)


def test_segments_grow_unless_the_user_has_set_up_the_allocator(allocator_settings):
    grow_segments()
    assert allocator_settings() == "expandable_segments:True"
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:512")
    grow_segments()
    assert allocator_settings() == "max_split_size_mb:512"


@pytest.mark.parametrize("growing", [True, False])
def test_memory_for_another_process_lies_in_a_segment_of_its_own_that_does_not_grow(
        growing, monkeypatch, allocator_settings):
    if growing:
        grow_segments()
    before, seen = allocator_settings(), []

    @contextmanager
    def use(pool):
        seen.append((pool, allocator_settings()))
        yield

    monkeypatch.setattr(torch.cuda, "MemPool", lambda: "own pool")
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    with pretended_cuda(monkeypatch), exported(16, GPU) as (memory, _):
        assert memory.nbytes == 16
    assert seen == [("own pool", "expandable_segments:False" if growing else "")]
    assert allocator_settings() == before


def test_the_stand_in_refuses_what_cuda_refuses(monkeypatch):
    with pretended_cuda(monkeypatch) as mode:
        here, there = torch.ones(2), torch.ones(2, device="cuda", requires_grad=True)
        assert (there.device, there.is_cuda, (there * 2).device) == (GPU, True, GPU)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            here[there.detach() > 0]
        with pytest.raises(TypeError, match="can't convert"):
            there.detach().numpy()
        assert there.detach()[here > 0].tolist() == (there * torch.tensor(1.0)).tolist() == [1.0, 1.0]
        (there * here.to(there.device)).sum().backward()
        assert there.grad.device == GPU
        host = torch.zeros(2).copy_(there.detach(), non_blocking=True)
        assert host.tolist() == [0.0, 0.0]
        mode.synchronize()
        assert host.tolist() == [1.0, 1.0]
