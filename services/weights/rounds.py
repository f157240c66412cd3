"""One transfer of a version from the learner's ranks into the samplers' processes: who sends which rows to whom.

A *round* sends one version. Its senders are ranks of the learner, its receivers the processes of vLLM. Each sender has
a *share*: pieces of tensors, one after another in one stream of bytes. A receiver cuts the streams into tensors again,
and keeps its part of each (rollout/transfer/version_part.py).

    way   senders                            streams that a receiver reads
    nccl  the ranks that hold all shards     all: each rank sends its own rows to all receivers, in the senders' order
    ipc   every rank                         that of the rank on its own GPU, which holds whole tensors for it
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from services.records import Version
from services.weights.pack import ALIGNMENT, ITEM_SIZES, Entry, Manifest

if TYPE_CHECKING:
    from torch import Tensor

Way = Literal["nccl", "ipc"]


class ShardRows(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of one tensor. A tensor without dimensions has one row."""

    tensor: int
    """Index into the manifest."""
    first: int
    """Number of the first row."""
    rows: int


Share = list[ShardRows]


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout worker that takes part in transfers."""

    worker: str
    processes: int = 1
    """Processes of its engine: rollout.tensor_parallel."""
    shared_gpu: int = 0
    """Number of the learner rank with which it shares a GPU; only `ipc` reads it."""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a receiver has to know about one transfer."""

    version: Version
    way: Way
    manifest: Manifest
    shares: list[Share]
    """One share for each sender."""
    members: list[Participant]
    group: str = ""
    """Name of the communicators, and the place where they meet. They are made again whenever it changes."""
    handles: list[bytes] = []
    """`ipc`: one handle of memory for each sender (services/weights/shared_memory.py)."""
    seconds: float
    """Deadline of the round."""

    @property
    def receivers(self) -> int:
        """Number of receiving processes."""
        return sum(member.processes for member in self.members)

    def first_receiver(self, worker: str) -> int | None:
        """Returns the number of a worker's first process among all receivers; None if it takes no part."""
        before = 0
        for member in self.members:
            if member.worker == worker:
                return before
            before += member.processes
        return None

    def read_by(self, shared_gpu: int) -> list[int]:
        """Returns the senders whose streams a receiver on this GPU reads, in order."""
        return [shared_gpu] if self.way == "ipc" else list(range(len(self.shares)))


def row_elements(entry: Entry) -> int:
    """Returns the number of elements in one row of a tensor."""
    return math.prod(entry.shape[1:])


def places(manifest: Manifest, share: Share) -> tuple[list[int], int]:
    """Returns the offset of each piece in the stream of a share, and the bytes of the stream."""
    offsets, end = [], 0
    for piece in share:
        offsets.append(end)
        entry = manifest[piece.tensor]
        size = piece.rows * row_elements(entry) * ITEM_SIZES[entry.dtype]
        end = -(-(end + size) // ALIGNMENT) * ALIGNMENT
    return offsets, end


def elements(manifest: Manifest, share: Share, buckets: Iterable[Tensor]) -> Iterator[tuple[int, int, Tensor]]:
    """Yields all elements of a share in runs: the tensor's index, the place of the first one in the tensor, the run.

    `buckets`: the stream of the share, in order, in pieces whose lengths are multiples of every item size. A run is a
    view into a bucket.
    """
    import torch

    waiting = deque(zip(share, places(manifest, share)[0], strict=True))
    begin = 0
    for bucket in buckets:
        end = begin + len(bucket)
        while waiting and waiting[0][1] < end:
            piece, at = waiting[0]
            entry = manifest[piece.tensor]
            row, item = row_elements(entry), ITEM_SIZES[entry.dtype]
            over = at + piece.rows * row * item
            low, high = max(at, begin), min(over, end)
            run = bucket[low - begin : high - begin].view(getattr(torch, entry.dtype))
            yield piece.tensor, piece.first * row + (low - at) // item, run
            if over > end:
                break
            waiting.popleft()
        begin = end


def check_whole(manifest: Manifest, shares: Sequence[Share]) -> None:
    """Raises ValueError unless the shares have every row of every tensor exactly once."""
    found: dict[int, list[ShardRows]] = {}
    for piece in (piece for share in shares for piece in share):
        found.setdefault(piece.tensor, []).append(piece)
    for index, entry in enumerate(manifest):
        end = 0
        for piece in sorted(found.get(index, []), key=lambda piece: piece.first):
            if piece.first != end:
                raise ValueError(f"{entry.name}: rows {end} to {piece.first} have no sender, or two")
            end += piece.rows
        if end != (entry.shape[0] if entry.shape else 1):
            raise ValueError(f"{entry.name}: the shares have {end} rows of {entry.shape}")
