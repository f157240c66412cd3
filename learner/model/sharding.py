"""Shards models over the learner's ranks, layer by layer, with FSDP2.

Four choices are made for each model (`Layout`); all but the second depend on its size:

- Checkpointed layers keep only their input and compute the rest again in the backward pass.
- Compiled layers fuse what lies between their matrix products (`learner.compile`). All layers of one kind share their
  compiled code, whose sizes are symbolic, since no two packs are alike. FSDP's hooks stay outside.
- A small model stays gathered from its first pack to its last: weights are gathered once, and gradients of several
  packs are summed before they are reduced over the ranks. The gathered weights and gradients of a large one do not fit.
- A model that fits on the ranks of one machine is sharded over these, so each machine has a copy and gathers weights
  without the network. A larger one is sharded over all ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from learner.model.family import carries_state
from learner.model.loading import Weights
from learner.model.memory import Layout
from services.errors import UserError, in_short

BACKEND = "inductor"
"""Code generator of compiled layers: Triton on GPUs, C++ on CPUs."""


def check_compiles(hf: Any, device: torch.device) -> None:
    """Raises UserError if layers of this model's family cannot be compiled, or if torch cannot compile here."""
    if carries_state(hf):
        raise UserError(f"learner.compile=true: layers of the family {hf.config.model_type} carry a state along the "
                        "sequence, and torch cannot compile these", "set learner.compile=false")
    try:
        tensor = torch.ones(4, device=device, requires_grad=True)
        torch.compile(nn.functional.silu, backend=BACKEND)(tensor).sum().backward()
    except Exception as error:  # torch, Triton and the C compiler each raise their own
        raise UserError(f"torch cannot compile for {device.type} ({in_short(error)})",
                        "install a C and C++ compiler and Python's headers, or set learner.compile=false") from error


def shard(model: nn.Module, body: nn.Module, weights: Weights, mesh: DeviceMesh, *, layout: Layout,
          half: bool, frozen: torch.dtype | None = None) -> None:
    """Loads the weights and shards them in place, the layers of the body one by one, then the rest.

    `half`: computes in bfloat16; trained weights and reductions stay float32. `frozen`: number format of the weights if
    they are not trained.
    """
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32)
    device, dtype = mesh.device_type, frozen or torch.float32

    def place(module: nn.Module) -> None:
        weights.fill(module, device, dtype)
        module.to(device)  # adapters and most buffers, which no file holds
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=not layout.gathered)

    layers = getattr(body, "layers", nn.ModuleList())
    for i, layer in enumerate(layers):
        if layout.compiled:  # only the function, so that names and hooks do not change
            layer.forward = torch.compile(layer.forward, backend=BACKEND, dynamic=True)
        if layout.checkpointing:  # layers are not random, so no random state is kept for the second pass
            layers[i] = checkpoint_wrapper(layer, preserve_rng_state=False)
        place(layers[i])
    weights.fill(model, device, dtype)
    model.to(device)
    # The model's input is a pack, whose temperatures and advantages stay float32.
    fully_shard(model, mesh=mesh, mp_policy=replace(precision, cast_forward_inputs=False))


def uncompiled(model: nn.Module) -> AbstractContextManager[object]:
    """Runs compiled layers as plain ones in its block. Without compiled layers, torch's compiler is not imported."""
    compiled = any("forward" in vars(module) for module in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def give_back(model: nn.Module) -> None:
    """Frees the gathered weights of a model. It may never have run."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def end_passes(model: nn.Module) -> None:
    """Ends forward passes without a backward pass, which would do the same: frees the gathered weights, and FSDP's list
    of the passes, which grows with each layer of each pass."""
    if isinstance(model, FSDPModule) and hasattr(model, "reset_iter_state"):
        model.reset_iter_state()
    else:  # torch before 2.13, with which the self-test runs too
        give_back(model)


def sync_gradients(model: nn.Module, *, once: bool, last: bool) -> None:
    """Prepares a backward pass. With `once`, ranks reduce gradients only at the last pack."""
    if once and isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)


def local_part(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that may be sharded."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def with_part(tensor: Tensor, local: Tensor) -> Tensor:
    """Returns a tensor that is sharded as `tensor` is, with another part of this rank."""
    return DTensor(local, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else local
