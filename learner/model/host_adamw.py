"""AdamW whose moments lie in host memory.

Moments take 8 of the 16 bytes of a trained parameter. Here they come to the device for one parameter at a time. Each
update moves 16 bytes per parameter over the bus: about 2 s for 7B on PCIe 5, while the passes of such an update take a
minute.

FSDP's CPU offload is not used, because it would move the weights too, at every pass, and run the update on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from learner.model.host_memory import pinned
from learner.model.sharding import local_part, with_part

MOMENTS = ("exp_avg", "exp_avg_sq")


class HostAdamW(torch.optim.AdamW):
    """AdamW as in torch.optim. It updates one parameter after another."""

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
        """Loads the state as torch does, but for the moments: torch would put all of them onto the device first."""
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
    """Returns the tensor itself if it lies there as `_host_copy` would put it, else such a copy."""
    local = local_part(tensor)
    lies_there = local.device.type == "cpu" and (not local_part(like).is_cuda or local.is_pinned())
    return tensor if lies_there else _host_copy(tensor, like)


def _host_copy(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a copy in host memory, pinned if the device is a GPU, and sharded like `like`."""
    local = local_part(tensor)
    host = pinned(local, local_part(like).device).copy_(local)
    return with_part(like, host)
