"""Moves the states of one rank to host memory and back, so that a sampler may fill the GPU between learner steps.

States are the sharded weights of all models and what their optimizers hold on the device. They go into pinned host
memory, which is kept from turn to turn because pinning is slow. FSDP2 allows a move between passes: `nn.Module._apply`,
which `Module.to` uses as well, gives every shard another storage and lets FSDP take note of it.

While the states are parked, they can be read, so a checkpoint can be written. No pass can run.

On a CPU the same code copies between two buffers of host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from learner.model.host_memory import pinned
from learner.model.sharding import give_back, local_part, with_part

Move = Callable[[tuple[int, str], Tensor], Tensor]
"""Returns another place's copy of a local tensor. Its key names the parameter by id, and the optimizer's state."""


class Parking:
    """The host memory in which the states of `models` and `optimizers` wait. Each parameter keeps its identity."""

    def __init__(self, device: torch.device, models: Sequence[nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._device = device
        self._models = models
        self._optimizers = optimizers
        self._copies: dict[tuple[int, str], Tensor] = {}
        self.parked = False

    def park(self) -> None:
        """Moves all states to host memory and gives the device's memory back. Parked states stay as they are."""
        if not self.parked:
            self._move(self._out)
            self.parked = True

    def unpark(self) -> None:
        """Moves all states to the device."""
        if self.parked:
            self._move(self._back)
            self.parked = False

    def _move(self, move: Move) -> None:
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        part = local_part(value)
                        if (moved_part := move((id(parameter), name), part)) is not part:  # else it would lose its pin
                            state[name] = with_part(value, moved_part)
        moved: dict[int, Tensor] = {}
        for model in self._models:
            give_back(model)  # else the gathered weights are its parameters
            moved |= {id(tensor): move((id(tensor), ""), local_part(tensor)) for tensor in model.parameters()}
        self._wait()  # where ranks have unequal shards, FSDP copies the small ones at once, to fill them up
        for model in self._models:
            model._apply(lambda tensor: with_part(tensor, moved[id(tensor)]) if id(tensor) in moved else tensor)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _wait(self) -> None:
        """Returns once all copies have arrived."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _out(self, key: tuple[int, str], value: Tensor) -> Tensor:
        if value.device.type != self._device.type:
            return value  # moments that always lie in host memory (learner.offload)
        if key not in self._copies:
            self._copies[key] = pinned(value, self._device)
        return self._copies[key].copy_(value, non_blocking=True)

    def _back(self, key: tuple[int, str], value: Tensor) -> Tensor:
        return value.to(self._device, non_blocking=True, copy=True) if key in self._copies else value
