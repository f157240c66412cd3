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
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

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
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the moments are in host memory when this returns

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state as torch does, onto the device, then moves the moments back to host memory."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            for name in MOMENTS:
                state[name] = _host_copy(state[name], parameter)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, weight = self.state[parameter], _local(parameter)
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in MOMENTS:
                state[name] = _host_copy(torch.zeros_like(parameter), parameter)
        moments = [_local(state[name]).to(weight.device, non_blocking=True) for name in MOMENTS]
        assert parameter.grad is not None
        adamw([weight], [_local(parameter.grad)], moments[:1], moments[1:], [], [state["step"]], foreach=False,
              amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
              weight_decay=group["weight_decay"], eps=group["eps"], maximize=False)
        for name, moved in zip(MOMENTS, moments, strict=True):
            _local(state[name]).copy_(moved, non_blocking=True)


def _local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _host_copy(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns a copy in host memory, pinned if the device is a GPU, and sharded like `like`."""
    local = _local(tensor)
    host = torch.empty(local.shape, dtype=local.dtype, pin_memory=_local(like).is_cuda).copy_(local)
    return DTensor(host, like._spec, requires_grad=False) if isinstance(like, DTensor) else host
