"""One process's part of a version that has arrived: an equal run of elements of every tensor, whatever its shape.

The T processes of an engine over T GPUs keep one part each, so that a version that waits for its swap takes 1 / T of
its bytes on each GPU. vLLM's loaders take whole tensors and cut them by themselves. In the swap the processes therefore
put one tensor after another together, by a gather over vLLM's own group.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from services.weights.pack import Manifest, layout

Gather = Callable[[Tensor], Tensor]
"""Returns the tensors [E] of all processes, one after another [T E]. A collective of the engine's processes."""


class VersionPart:
    """The memory of part `index` of `count`. It holds a version of this manifest once all its elements were put."""

    def __init__(self, manifest: Manifest, *, index: int, count: int, device: torch.device) -> None:
        self.manifest = manifest
        self._index, self._count = index, count
        runs, size = layout((entry.name, (-(-math.prod(entry.shape) // count),), entry.dtype) for entry in manifest)
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._own = [self.memory[run.offset : run.offset + run.nbytes].view(getattr(torch, run.dtype)) for run in runs]
        self._places = {entry.name: place for place, entry in enumerate(manifest)}

    @property
    def names(self) -> list[str]:
        """Names of all tensors, in the order of the manifest."""
        return list(self._places)

    def put(self, tensor: int, first: int, run: Tensor) -> None:
        """Copies those elements of a run that belong to this part. `first`: place of the run's first in the tensor."""
        own = self._own[tensor]
        begin = self._index * len(own)
        low, high = max(first, begin), min(first + len(run), begin + len(own))
        if low < high:
            own[low - begin : high - begin].copy_(run[low - first : high - first])

    def whole(self, name: str, gather: Gather | None = None) -> Tensor:
        """Returns a whole tensor. With several parts it is a collective, and needs `gather`."""
        entry = self.manifest[self._places[name]]
        flat = self._own[self._places[name]]
        if self._count > 1:
            assert gather is not None
            flat = gather(flat)
        return flat[: math.prod(entry.shape)].view(entry.shape)
