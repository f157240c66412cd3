"""Packs the policy's weights for the samplers: each rank writes its own shards into one buffer.

The buffer is memory that the ranks of rank 0's machine share. No rank gathers a tensor there, and the weights cross the
bus to host memory once, in the sampler's number format. If the model is sharded over several machines, the tensors are
gathered one by one, and rank 0 writes them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from learner.lora import DOWN, UP, adapter_scale, is_adapter, merged
from learner.model import Policy, whole
from services.weights.pack import Entry, Manifest, layout


class PolicyWeights:
    """The places of the policy's tensors in a buffer, tied entries included and adapters merged.

    `dtype`: the number format of the sampler. `gathers`: whether tensors are gathered because rank 0's machine does
    not hold all shards.
    """

    def __init__(self, policy: Policy, dtype: torch.dtype, *, rank: int, gathers: bool) -> None:
        self._policy, self._dtype, self._rank, self.gathers = policy, dtype, rank, gathers
        self.manifest, self.size = self._layout()

    def _layout(self) -> tuple[Manifest, int]:
        return layout((name, tuple(value.shape), str(self._format(value)).removeprefix("torch."))
                      for name, value in self._policy.hf.state_dict().items() if not is_adapter(name))

    def _format(self, value: Tensor) -> torch.dtype:
        return self._dtype if value.is_floating_point() else value.dtype

    def write(self, buffer: np.ndarray | None) -> None:
        """Writes this rank's part of the weights; None: only helps to gather.

        A collective of all ranks if tensors are gathered, and of the ranks of one machine if there are adapters.
        """
        state, scale = self._policy.hf.state_dict(), adapter_scale(self._policy)
        flat = None if buffer is None else torch.from_numpy(buffer)
        for entry in self.manifest:
            stem, value = entry.name.removesuffix("weight"), state[entry.name]
            first, found = self._part(value)
            if stem + DOWN in state:
                _, up = self._part(state[stem + UP])  # its rows are sharded like those of the weight
                found = merged(found, whole(state[stem + DOWN]), up, scale)
            mine = self._rank == 0 or (isinstance(value, DTensor) and not self.gathers)
            if flat is not None and mine:
                _rows(flat, entry, first, found).copy_(found.detach().to(self._format(value)))

    def _part(self, value: Tensor) -> tuple[int, Tensor]:
        """Returns the first row of this rank's part, and the part."""
        if self.gathers or not isinstance(value, DTensor):
            return 0, whole(value)
        _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        assert not any(offset[1:]), "FSDP shards rows"
        return offset[0], value.to_local()


def _rows(flat: Tensor, entry: Entry, first: int, part: Tensor) -> Tensor:
    """Returns the view of the rows of `part` in the buffer."""
    row = entry.nbytes // max(1, entry.shape[0]) if entry.shape else entry.nbytes
    at = entry.offset + first * row
    size = row * (part.shape[0] if entry.shape else 1)
    return flat[at : at + size].view(getattr(torch, entry.dtype)).view(part.shape)


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
