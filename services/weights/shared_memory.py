"""Memory that processes of one machine share: host memory by a path, and a GPU's memory by its CUDA IPC handle."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@contextmanager
def offered(size: int) -> Iterator[tuple[np.ndarray, str]]:
    """Yields an empty buffer and the path by which processes of this machine open it during the block."""
    descriptor = os.memfd_create("gagpo-weights")
    try:
        os.ftruncate(descriptor, size)
        yield _mapped(descriptor, size), f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def opened(path: str) -> np.ndarray:
    """Returns the buffer that another process of this machine offers."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return _mapped(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, size: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)


@contextmanager
def exported(size: int, device: torch.device) -> Iterator[tuple[Tensor, Callable[[], bytes]]]:
    """Yields an empty uint8 tensor on `device`, and a function that makes a handle by which one other process opens it.

    On a GPU the handle is that of CUDA IPC, as torch.multiprocessing makes it. It holds numbers and bytes alone, so
    that nothing has to be unpickled. The tensor must be complete before a process opens it. torch counts the processes
    that a handle waits for, from 1 on: if nobody opens it, its memory is never free again.
    """
    import torch

    if device.type == "cpu":
        with offered(size) as (buffer, path):
            yield torch.from_numpy(buffer), path.encode
        return
    flat = torch.empty(size, dtype=torch.uint8, device=device)
    yield flat, lambda: msgspec.msgpack.encode(flat.untyped_storage()._share_cuda_())


def imported(handle: bytes, device: torch.device) -> Tensor:
    """Returns the uint8 tensor behind a handle that another process exports. `device`: the same GPU, as seen here."""
    import torch

    if device.type == "cpu":
        return torch.from_numpy(opened(handle.decode()))
    _, *place, _ = msgspec.msgpack.decode(handle)
    torch.cuda.set_device(device)
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *place, False)  # no event to wait for
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)  # pyright: ignore[reportCallIssue, reportArgumentType]
