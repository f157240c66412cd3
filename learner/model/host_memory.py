"""Host memory for the states of a GPU, page-locked, so that copies are quick and run alongside the GPU's work.

HostOffload moves the states of one rank there and back, so that a sampler may fill the GPU between learner steps.
States are the sharded weights of all models and what their optimizers hold on the device. Host memory is kept from turn
to turn, because pinning is slow. FSDP2 allows a move between passes: `nn.Module._apply`, which `Module.to` uses as
well, gives every shard another storage and makes FSDP aware of it. While states are offloaded they can be read, so a
checkpoint can be written, but no pass can run. On a CPU the same code copies between two buffers of host memory.

A driver locks whole pages, and some refuse a range that shares a page with a locked one (error 712). So each locked
range is whole pages of its own. A large tensor has a range to itself, and small ones share a range: a third of an
optimizer's tensors have four bytes.

torch's own pinned memory is not used: it rounds each tensor up to a power of two.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory

from learner.model.sharding import give_back, local_part, with_part

SHARED = 1 << 20
"""Bytes of a range that small tensors share. A tensor of at least as many has its own."""
_ALIGNED = 64
"""Bytes at whose multiples tensors begin, as torch's own do."""


class _Range:
    """Pages of host memory, locked while the object lives. Each tensor in them refers to it."""

    def __init__(self, size: int, *, lock: bool) -> None:
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = torch.empty(size + mmap.PAGESIZE, dtype=torch.uint8)
        start = -memory.data_ptr() % mmap.PAGESIZE
        self.bytes = memory[start:start + size]
        self.filled = 0
        if lock and size:
            pin_memory(self.bytes.data_ptr(), size)
            weakref.finalize(self, unpin_memory, self.bytes.data_ptr())

    def take(self, size: int) -> Tensor:
        """Returns the next bytes, uint8 [size]."""
        start, self.filled = self.filled, self.filled + -(-size // _ALIGNED) * _ALIGNED
        return self.bytes[start:start + size]

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes are left."""
        return self.filled + size <= len(self.bytes)


_open: dict[bool, _Range] = {}
"""The range that takes the next small tensors, by whether it is locked."""


def pinned(like: Tensor, device: torch.device) -> Tensor:
    """Returns an empty tensor in host memory, page-locked if the device is a GPU."""
    size, lock = like.numel() * like.element_size(), device.type == "cuda"
    if size >= SHARED:
        pages = _Range(size, lock=lock)
    else:
        if lock not in _open or not _open[lock].has_room(size):
            _open[lock] = _Range(SHARED, lock=lock)
        pages = _open[lock]
    host = pages.take(size).view(like.dtype).view(like.shape)
    host.pages = pages  # type: ignore[attr-defined]
    return host


Move = Callable[[tuple[int, str], Tensor], Tensor]
"""Returns the copy of a local tensor elsewhere. Its key: id of the parameter, name in the optimizer's state."""


class HostOffload:
    """The host memory for the states of `models` and `optimizers`. Each parameter keeps its identity."""

    def __init__(self, device: torch.device, models: Sequence[nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._device = device
        self._models = models
        self._optimizers = optimizers
        self._copies: dict[tuple[int, str], Tensor] = {}
        self.offloaded = False

    def offload(self) -> None:
        """Moves all states to host memory and frees the device's memory. Does nothing to offloaded states."""
        if not self.offloaded:
            self._move(self._to_host)
            self.offloaded = True

    def onload(self) -> None:
        """Moves all states to the device."""
        if self.offloaded:
            self._move(self._to_device)
            self.offloaded = False

    def _move(self, move: Move) -> None:
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        part = local_part(value)
                        if (moved_part := move((id(parameter), name), part)) is not part:  # a copy would not be pinned
                            state[name] = with_part(value, moved_part)
        moved: dict[int, Tensor] = {}
        for model in self._models:
            give_back(model)  # else its parameters are the gathered weights
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

    def _to_host(self, key: tuple[int, str], value: Tensor) -> Tensor:
        if value.device.type != self._device.type:
            return value  # moments that always lie in host memory (learner.offload)
        if key not in self._copies:
            self._copies[key] = pinned(value, self._device)
        return self._copies[key].copy_(value, non_blocking=True)

    def _to_device(self, key: tuple[int, str], value: Tensor) -> Tensor:
        return value.to(self._device, non_blocking=True, copy=True) if key in self._copies else value
