"""The policy's weights for the samplers, as each rank holds them: its own shards, in the sampler's number format.

In host memory the ranks of rank 0's machine write them into one buffer that they share. No rank gathers a tensor there,
and the weights cross the bus once. If the model is sharded over several machines, the tensors are gathered one by one,
and rank 0 writes them. Between GPUs learner/weights/sender.py sends the same parts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from learner.model.lora import DOWN, UP, adapter_scale, is_adapter, merged
from learner.model.policy import Policy, whole
from services.weights.pack import Entry, Manifest, layout
from services.weights.rounds import ShardRows


class PolicyWeights:
    """The policy's tensors and this rank's part of each, tied entries included and adapters merged.

    `dtype`: the number format of the sampler. `gathers`: whether a rank's part is the whole tensor, gathered from all
    ranks.
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
        flat = None if buffer is None else torch.from_numpy(buffer)
        for entry, piece, part in zip(self.manifest, self.pieces(), self.parts(), strict=True):
            if flat is not None and (self._rank == 0 or (piece.rows and not self.gathers)):
                _rows(flat, entry, piece.first, part).copy_(part)

    def pieces(self) -> list[ShardRows]:
        """Returns which rows of each tensor this rank holds: none of an unsharded one, except on rank 0."""
        state = self._policy.hf.state_dict()
        return [self._piece(index, state[entry.name]) for index, entry in enumerate(self.manifest)]

    def _piece(self, index: int, value: Tensor) -> ShardRows:
        shape = tuple(value.shape)
        if self.gathers or not isinstance(value, DTensor):
            rows = shape[0] if shape else 1
            return ShardRows(tensor=index, first=0, rows=rows if self.gathers or self._rank == 0 else 0)
        mine, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        assert not any(offset[1:]), "FSDP shards rows"
        return ShardRows(tensor=index, first=offset[0], rows=mine[0])

    def parts(self) -> Iterator[Tensor]:
        """Yields this rank's part of each tensor. A collective as `write` is."""
        state, scale = self._policy.hf.state_dict(), adapter_scale(self._policy)
        for entry in self.manifest:
            stem, value = entry.name.removesuffix("weight"), state[entry.name]
            found = self._part(value)
            if stem + DOWN in state:
                up = self._part(state[stem + UP])  # its rows are sharded like those of the weight
                found = merged(found, whole(state[stem + DOWN]), up, scale)
            yield found.detach().to(self._format(value))

    def _part(self, value: Tensor) -> Tensor:
        return value.to_local() if isinstance(value, DTensor) and not self.gathers else whole(value)


def _rows(flat: Tensor, entry: Entry, first: int, part: Tensor) -> Tensor:
    """Returns the view of the rows of `part` in the buffer."""
    row = entry.nbytes // max(1, entry.shape[0]) if entry.shape else entry.nbytes
    at = entry.offset + first * row
    size = row * (part.shape[0] if entry.shape else 1)
    return flat[at : at + size].view(getattr(torch, entry.dtype)).view(part.shape)
