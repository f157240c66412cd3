"""States and moments in host memory change no number, and leave nothing on the device."""

import subprocess
import sys

import pytest
import torch
from learner_tiny import CASES, VARIANTS, critic_weights, make_config, make_groups, weights
from torch import nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from learner.model.host_memory import HostOffload
from learner.model.trained_model import HostAdamW
from learner.trainer import Learner

OPTIONS = {"critic": CASES["critic"], "lora": VARIANTS["lora"], "offload": {**CASES["critic"], "offload": True}}

LATE = """
import sys, torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from learner.model.host_memory import HostOffload

class Late(HostOffload):
    coming = []

    def _to_host(self, key, value):
        host = torch.zeros_like(value)
        self.coming.append((host, value))
        return host

    def _wait(self):
        while self.coming:
            host, value = self.coming.pop()
            host.copy_(value)

torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
model = fully_shard(nn.Linear(4, 3, bias=False), mesh=init_device_mesh("cpu", (2,)))
before = model.weight.to_local().clone()
assert before.shape == (1, 4)  # rank 0 has two of the three rows
moved = Late(torch.device("cpu"), [model], [])
for turn in range(2):
    moved.offload()
    assert torch.equal(model.weight.to_local(), before), turn
    moved.onload()
"""
"""Copies to host memory that arrive only once they are waited for, as those of a GPU."""


def on_the_device(learner):
    """Returns weak references to the storages of all sharded weights and moments."""
    stepper = learner.stepper
    models = [trained_model.model for trained_model in stepper.trained_models]
    models += [stepper.reference] if isinstance(stepper.reference, nn.Module) else []
    tensors = [parameter.detach() for model in models for parameter in model.parameters()]
    tensors += [value for trained_model in stepper.trained_models for state in trained_model.optimizer.state.values()
                for value in state.values()]
    locals_ = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return [StorageWeakRef(tensor.untyped_storage()) for tensor in locals_]


def test_moments_that_lie_in_host_memory_stay_the_tensors_that_were_pinned(model_path, rank_group):
    """The memory of a tensor is page-locked as long as the tensor lives: another one on the same memory loses that."""
    learner = Learner(make_config(offload=True), model_path, rank_group)
    learner.train(make_groups(0, step=0))
    optimizer = learner.stepper.policy.optimizer
    before = [dict(state) for state in optimizer.state.values()]
    HostOffload(torch.device("xpu"), [], [optimizer]).offload()  # moments never lie on such a device
    assert len(before) > 0
    for old, new in zip(before, optimizer.state.values(), strict=True):
        assert all(new[name] is value for name, value in old.items())


@pytest.mark.parametrize("case", OPTIONS)
def test_states_offloaded_between_steps_change_no_bit(model_path, rank_group, tmp_path, case):
    plain, offloaded = (Learner(make_config(**OPTIONS[case]), model_path, rank_group) for _ in range(2))
    for step in range(3):
        offloaded.offload()
        offloaded.onload()
        for learner in (plain, offloaded):
            learner.train(make_groups(step, step=step))
    offloaded.offload()
    offloaded.save(tmp_path).result(60)  # a checkpoint is made from host memory
    resumed = Learner(make_config(**OPTIONS[case]), model_path, rank_group)
    resumed.offload()
    resumed.onload()
    resumed.load(tmp_path)
    offloaded.onload()
    for learner in (plain, offloaded, resumed):
        learner.train(make_groups(3, step=3))
    for learner in (offloaded, resumed):
        for found, expected in ((weights(learner), weights(plain)), (critic_weights(learner), critic_weights(plain))):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_offloading_frees_every_storage_of_the_states_in_each_turn(model_path, rank_group):
    """FSDP keeps its own references to the shards, and a reference model its gathered weights."""
    learner = Learner(make_config(**CASES["critic"]), model_path, rank_group)
    for step in range(2):
        learner.train(make_groups(step, step=step))
        before = on_the_device(learner)
        assert not any(storage.expired() for storage in before)
        learner.offload()
        assert all(storage.expired() for storage in before)
        waiting = on_the_device(learner)
        learner.onload()
        assert not any(storage.expired() for storage in waiting)  # the host's memory is kept for the next turn


def test_after_a_step_no_model_is_gathered(model_path, rank_group):
    """A reference runs only forwards, after which FSDP gives nothing back by itself."""
    learner = Learner(make_config(**CASES["critic"]), model_path, rank_group)
    learner.train(make_groups(0))
    for model in (learner.policy, learner.stepper.reference, learner.stepper.critic.trained_model.model):
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_unequal_shards_are_copied_by_fsdp_only_after_they_have_arrived():
    """FSDP fills a short shard up as soon as the parameter has it."""
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=120)


def test_updates_checkpoints_and_resumption_are_the_same_to_the_bit(model_path, rank_group, tmp_path):
    options = CASES["critic"]
    plain, host = (Learner(make_config(offload=offload, **options), model_path, rank_group) for offload in (False,
                                                                                                            True))
    for learner in (plain, host):
        for seed in range(2):
            learner.train(make_groups(seed, step=seed))
    host.save(tmp_path).result(60)
    resumed = {offload: Learner(make_config(offload=offload, **options), model_path, rank_group) for offload in (False,
                                                                                                                 True)}
    for learner in resumed.values():
        learner.load(tmp_path)
    assert isinstance(resumed[True].stepper.policy.optimizer, HostAdamW)
    for learner in (plain, host, *resumed.values()):
        learner.train(make_groups(2, step=2))
    for learner in (host, *resumed.values()):
        for found, expected in ((weights(learner), weights(plain)), (critic_weights(learner), critic_weights(plain))):
            assert all(torch.equal(found[name], expected[name]) for name in expected)
