"""The policy's weights for the samplers, as each rank holds them: its own rows, in the sampler's number format."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from learner.model.lora import DOWN, UP, adapter_scale, is_adapter, merged
from learner.model.policy import Policy, whole
from services.weights.pack import Entry, Share, TensorPiece, layout


class PolicyWeights:
    """The policy's tensors and this rank's piece of each, tied entries included and adapters merged.

    `dtype`: the number format of the sampler. `gathers`: whether a rank's piece is the entire tensor, gathered from all
    ranks; otherwise it is the rank's own rows, which only rank 0 has of a tensor that is not sharded.
    """

    def __init__(self, policy: Policy, dtype: torch.dtype, *, rank: int, gathers: bool) -> None:
        self._policy, self._dtype, self._rank, self._gathers = policy, dtype, rank, gathers
        state = policy.hf.state_dict()
        self.manifest, self.size = layout((name, tuple(value.shape), str(self._format(value)).removeprefix("torch."))
                                          for name, value in state.items() if not is_adapter(name))
        self.share: Share = [self._piece(index, entry, state[entry.name]) for index, entry in enumerate(self.manifest)]
        """One piece of each tensor, in the order of the manifest; empty where this rank has no rows."""

    def pieces(self) -> Iterator[Tensor]:
        """Yields the pieces in the order of the manifest, flat. What they share with the model changes with it.

        A collective of all ranks if tensors are gathered, and of the ranks of one machine if there are adapters.
        """
        state, scale = self._policy.hf.state_dict(), adapter_scale(self._policy)
        for entry, piece in zip(self.manifest, self.share, strict=True):
            stem, value = entry.name.removesuffix("weight"), state[entry.name]
            part = self._part(value)
            if stem + DOWN in state:
                up = self._part(state[stem + UP])  # its rows are sharded like those of the weight
                part = merged(part, whole(state[stem + DOWN]), up, scale)
            flat = part.detach().to(self._format(value)).contiguous().reshape(-1)
            yield flat if piece.size else flat[:0]

    def _format(self, value: Tensor) -> torch.dtype:
        return self._dtype if value.is_floating_point() else value.dtype

    def _piece(self, index: int, entry: Entry, value: Tensor) -> TensorPiece:
        if self._gathers or not isinstance(value, DTensor):
            return TensorPiece(index, 0, entry.nbytes if self._gathers or self._rank == 0 else 0)
        mine, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        assert not any(offset[1:]), "FSDP shards rows"
        row = entry.nbytes // max(1, entry.shape[0])
        return TensorPiece(index, offset[0] * row, mine[0] * row)

    def _part(self, value: Tensor) -> Tensor:
        return value.to_local() if isinstance(value, DTensor) and not self._gathers else whole(value)
