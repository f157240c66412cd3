"""Memory that processes of one machine share: host memory by a path, and a GPU's memory by its CUDA IPC handle."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROWING = "expandable_segments:True"
"""The setting of torch's allocator with which segments of GPU memory grow."""


@contextmanager
def exported(size: int, device: torch.device) -> Iterator[tuple[Tensor, Callable[[], bytes]]]:
    """Yields an empty uint8 tensor on `device`, and a function that makes a handle by which another process opens it.

    A handle of host memory serves any number of processes during the block; the tensor itself outlives it. On a GPU
    the handle is that of CUDA IPC, as torch.multiprocessing makes it, for one process. It holds numbers and bytes
    alone, so that nothing has to be unpickled. The tensor must be complete before a process opens it. torch counts the
    processes that a handle waits for, from 1 on: if nobody opens it, its memory is never free again.
    """
    import torch

    if device.type != "cpu":
        pool = torch.cuda.MemPool()
        with _fixed_segments(), torch.cuda.use_mem_pool(pool):
            flat = torch.empty(size, dtype=torch.uint8, device=device)
        yield flat, lambda: msgspec.msgpack.encode(flat.untyped_storage()._share_cuda_())
        return
    descriptor = os.memfd_create("gagpo-weights")
    try:
        os.ftruncate(descriptor, size)
        yield _mapped(descriptor), f"/proc/{os.getpid()}/fd/{descriptor}".encode
    finally:
        os.close(descriptor)


@contextmanager
def _fixed_segments() -> Iterator[None]:
    """Gives new segments a fixed size: to open one that grows, a process needs the rights of a debugger."""
    import torch

    before = torch._C._accelerator_getAllocatorSettings()
    if GROWING not in before:
        yield
        return
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(before)


def imported(handle: bytes, device: torch.device) -> Tensor:
    """Returns the uint8 tensor behind a handle that another process exports. `device`: the same GPU, as seen here."""
    import torch

    if device.type == "cpu":
        descriptor = os.open(handle, os.O_RDWR)
        try:
            return _mapped(descriptor)
        finally:
            os.close(descriptor)
    _, *place, _ = msgspec.msgpack.decode(handle)
    torch.cuda.set_device(device)
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *place, False)  # no event to wait for
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _mapped(descriptor: int) -> Tensor:
    import torch

    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
