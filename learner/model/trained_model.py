"""A sharded model and its optimizer: the policy, or the critic."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from learner.model.host_memory import pinned
from learner.model.sharding import local_part, with_part
from services.config.tree import LearnerSection
from services.errors import LearnerFault

# AdamW whose moments lie in host memory.
#
# Moments take 8 of the 16 bytes of a trained parameter. Here they come to the device for one parameter at a time. Each
# update moves 16 bytes per parameter over the bus: about 2 s for 7B on PCIe 5, while the passes of such an update take
# a minute.
#
# FSDP's CPU offload is not used, because it would move the weights too, at every pass, and run the update on the CPU.

MOMENTS = ("exp_avg", "exp_avg_sq")


class HostAdamW(torch.optim.AdamW):
    """AdamW as in torch.optim, with moments in host memory. It updates one parameter after another."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        device = self.param_groups[0]["params"][0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the moments are in host memory when this returns

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state as torch does, except the moments, which torch would first copy to the device."""
        loaded = state_dict["state"]
        rest = {key: {name: value for name, value in state.items() if name not in MOMENTS}
                for key, state in loaded.items()}
        super().load_state_dict({**state_dict, "state": rest})
        keys = (key for group in state_dict["param_groups"] for key in group["params"])
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        for key, parameter in zip(keys, parameters, strict=True):
            for name in MOMENTS:
                if name in loaded.get(key, ()):
                    self.state[parameter][name] = _in_host_memory(loaded[key][name], parameter)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, weight = self.state[parameter], local_part(parameter)
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in MOMENTS:
                state[name] = _host_copy(torch.zeros_like(parameter), parameter)
        moments = [local_part(state[name]).to(weight.device, non_blocking=True) for name in MOMENTS]
        assert parameter.grad is not None
        adamw([weight], [local_part(parameter.grad)], moments[:1], moments[1:], [], [state["step"]], foreach=False,
              amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
              weight_decay=group["weight_decay"], eps=group["eps"], maximize=False)
        for name, moved in zip(MOMENTS, moments, strict=True):
            local_part(state[name]).copy_(moved, non_blocking=True)


def _in_host_memory(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns the tensor if it is in host memory, and pinned for a GPU; else a copy that is."""
    local = local_part(tensor)
    in_place = local.device.type == "cpu" and (not local_part(like).is_cuda or local.is_pinned())
    return tensor if in_place else _host_copy(tensor, like)


def _host_copy(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a copy in host memory, pinned if the device is a GPU, and sharded like `like`."""
    local = local_part(tensor)
    host = pinned(local, local_part(like).device).copy_(local)
    return with_part(like, host)


MAX_SKIPPED = 3
"""Number of consecutive updates with a non-finite gradient that end the run. A single one may be chance."""

Model = TypeVar("Model", bound=nn.Module)


class TrainedModel(Generic[Model]):
    """A model and AdamW with the learner's betas, weight decay and gradient clip, and with its own learning rate."""

    def __init__(self, model: Model, section: LearnerSection, *, lr: float) -> None:
        self.model = model
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The fused update needs no extra copies. CPUs use the plain update, so that runs repeat their numbers.
        kind = HostAdamW if section.offload else partial(torch.optim.AdamW, fused=self.trained[0].is_cuda or None)
        self.optimizer = kind(self.trained, lr=lr, betas=section.betas, weight_decay=section.weight_decay)
        self.skipped_in_a_row = 0
        self._grad_clip = section.grad_clip

    def update(self) -> float:
        """Clips gradients, takes an optimizer step and clears gradients.

        Returns the gradient norm before clipping, NaN if the update was skipped. Raises LearnerFault if MAX_SKIPPED
        updates in a row are skipped.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self._grad_clip)
        value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if math.isfinite(value):
            self.optimizer.step()
            self.skipped_in_a_row = 0
        else:
            self.skipped_in_a_row += 1
        self.optimizer.zero_grad()
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise LearnerFault(f"the gradient was not finite in {MAX_SKIPPED} updates in a row")
        return value if math.isfinite(value) else math.nan

    def state(self) -> dict[str, Any]:
        """Returns the trained sharded weights and their moments for a checkpoint, with tied weights only once."""
        fresh = not self.optimizer.state
        model, optimizer = get_state_dict(
            self.model, self.optimizer, options=StateDictOptions(ignore_frozen_params=True))
        if fresh:  # torch creates the moments by a step at rate 0, which must not count in the bias correction
            for moments in self.optimizer.state.values():
                moments["step"].zero_()
        every, once = ({name for name, _ in self.model.named_parameters(remove_duplicate=alone)}
                       for alone in (False, True))
        return {"model": {name: value for name, value in model.items() if name not in every - once},
                "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        """Loads what `state` returned."""
        model = get_model_state_dict(self.model) | state["model"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=state["optimizer"])
