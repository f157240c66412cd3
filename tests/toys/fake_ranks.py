"""Rank 0 of large learners without a GPU: python fake_ranks.py CASES, a JSON list; prints a JSON list of results.

Tensors have sizes and no contents (FakeTensorMode), and collectives reach nobody (torch's fake process group), so a
step of 32B on 32 ranks takes seconds and no memory. Everything else is the learner's own code on the path of a GPU with
bfloat16: rows lie one after another, for the kernel of flash attention.

A case has the keys of a config (`keys`), the arguments of transformers' Qwen2Config (`model`), `ranks` and `gathered`,
which says whether the model stays gathered between packs. Its step makes two updates of two equal packs on each rank.
With `spread`, the standard deviation of the prompts' lengths, it makes `steps` steps of packs that differ, and the
result has what torch's allocator would reserve for them, in segments of fixed sizes and in those that grow.
"""

import json
import sys
import weakref
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from caching_allocator import reserved_bytes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import Qwen2Config

from learner import critic, trainer
from learner.model import memory, policy
from learner.model.attention import ATTENTION
from learner.model.loading import Weights, filed, skeleton
from learner.model.policy import Policy
from learner.rank_group import RankGroup
from learner.rows.packing import Rows
from learner.step import Stepper, Timer
from learner.trainer import Learner
from services.config.tree import Config

PROMPT, RESPONSE = 540, 100
UPDATES, PACKS = 2, 2


class FakeGroup(RankGroup):
    """Rank 0 of a group whose other ranks do not exist."""

    def __init__(self, world):
        self.rank, self.world, self.device = 0, world, torch.device("cpu")
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        self.mesh = init_device_mesh("cpu", (world,))
        self.nodes = [[rank] for rank in range(world)]  # so that a model is sharded over all ranks

    def all_reduce(self, values, op=None):
        return values


class Usage(TorchDispatchMode):
    """Counts the bytes of tensors that exist, at their peak, and those that collectives carry."""

    def __init__(self):
        super().__init__()
        self.sizes, self.now, self.peak, self.events = {}, 0, 0, []
        self.carried = {"gathered": 0, "reduced": 0}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self):
        def resize(storage, size):  # as FSDP frees gathered weights
            self._resize(storage, size)
            if storage._cdata in self.sizes:
                self._count(storage)

        torch.UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error):
        torch.UntypedStorage.resize_ = self._resize
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # Values are unknown: each number that is read is 1, and every element passes a test.
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0
        if func is torch.ops.aten.index.Tensor and args[1][0].dtype == torch.bool:
            return args[0].clone()
        if func is torch.ops.aten.bincount.default:
            return args[0].new_zeros(kwargs["minlength"] if kwargs else args[2])
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.c10d._allgather_base_.default:
            self.carried["gathered"] += args[0].nbytes
        elif func is torch.ops.c10d._reduce_scatter_base_.default:
            self.carried["reduced"] += args[1].nbytes
        self.note(out)
        return out

    def note(self, tensors):
        """Counts tensors from now on, until they are freed."""
        for tensor in tree_iter(tensors):
            if isinstance(tensor, torch.Tensor):
                local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # a DTensor counts the whole
                storage = local.untyped_storage()
                if storage._cdata not in self.sizes:
                    weakref.finalize(storage, self._forget, storage._cdata)
                self._count(storage)

    def _count(self, storage):
        if storage.nbytes() != self.sizes.get(storage._cdata):
            self.events.append((storage._cdata, storage.nbytes()))
        self.now += storage.nbytes() - self.sizes.get(storage._cdata, 0)
        self.sizes[storage._cdata] = storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _forget(self, key):
        self.events.append((key, 0))
        self.now -= self.sizes.pop(key)


def rows_of(tokens, ranks, spread=0, seed=0):
    """Returns rows that fill PACKS packs of each rank in each of UPDATES updates, all equal without a spread."""
    count = UPDATES * PACKS * ranks * (tokens // (PROMPT + RESPONSE))
    prompts = np.random.default_rng(seed).normal(PROMPT, spread, count).clip(1).astype(np.int64)
    answers = count * RESPONSE
    return Rows(
        tokens=np.zeros(prompts.sum() + answers, np.int32), sequence=np.arange(count),
        prompt_lengths=prompts, response_lengths=np.full(count, RESPONSE),
        sampler_logprobs=np.zeros(answers, np.float32), advantages=np.ones(count), temperatures=np.ones(count),
        stale=np.zeros(count, np.bool_), ends=np.ones(count, np.bool_))


def run(case):
    """Returns the peak bytes of a step, those that collectives carried, and the model's parameters."""
    memory.GATHERED_BYTES = 1 << 62 if case["gathered"] else 0
    config = Config.model_validate(case["keys"])

    def empty_policy(folder):
        hf = skeleton(Qwen2Config(**case["model"]), ATTENTION)
        shapes = {name: tensor.shape for name, tensor in filed(hf)}
        return Policy(hf).eval(), Weights(hf, lambda name: torch.empty(shapes[name], dtype=torch.bfloat16))

    for module in (trainer, policy, critic):
        module.empty_policy = empty_policy
    trainer.RankSender = lambda *settings, **others: None  # sends nothing here, and reads values
    trainer.takes_varlen = lambda device, *, half: half
    Stepper._gather = lambda self, values: np.zeros(len(values))  # numpy needs contents
    Stepper._row_advantages = lambda self, packs, outputs, num_rows: np.zeros(num_rows)
    nn.Module.to = lambda self, *where: self  # all is there already, and torch cannot replace fake parameters
    group = FakeGroup(case["ranks"])
    spread = case.get("spread", 0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        learner = Learner(config, Path("no folder"), group)
        assert not learner.stepper.grid
        usage = Usage()
        models = [each.model for each in learner.stepper.trained_models]
        models += [learner.stepper.reference] if isinstance(learner.stepper.reference, Policy) else []
        usage.note([tensor for model in models for tensor in model.parameters()])
        with usage:
            for seed in range(case.get("steps", 1)):
                learner.stepper.take(rows_of(config.learner.token_budget, group.world, spread, seed), Timer())
    dist.destroy_process_group()
    reserved = [reserved_bytes(usage.events, growing=growing) for growing in ((False, True) if spread else ())]
    return {"peak": usage.peak, "parameters": learner.shape.parameters, "reserved": reserved, **usage.carried}


if __name__ == "__main__":
    results = []
    for one in json.loads(sys.argv[1]):
        results.append(run(one))
        print(one["keys"]["name"], one["ranks"], results[-1], file=sys.stderr, flush=True)
    print(json.dumps(results))
