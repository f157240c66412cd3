"""Host memory for the states of a GPU: page-locked, so that copies are quick and run beside the GPU's work.

A driver locks whole pages, and some refuse a range that shares a page with a locked one (error 712). So each locked
range is whole pages of its own. A large tensor has a range to itself, and small ones share a range: a third of an
optimizer's tensors have four bytes.

torch's own pinned memory is not used: it rounds each tensor up to a power of two.
"""

from __future__ import annotations

import mmap
import weakref

import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory

SHARED = 1 << 20
"""Bytes of a range that small tensors share. A tensor of at least as many has its own."""
_ALIGNED = 64
"""Bytes at whose multiples tensors begin, as torch's own do."""


class _Range:
    """Whole pages of host memory, locked while the object lives. Each tensor in them holds it."""

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
        """Whether so many bytes are left."""
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
