"""Receives versions in vLLM's process, next to its engine: a thread fills memory of its own while requests go on.

Each of the T processes of an engine over T GPUs keeps an equal part of each tensor, so a version that waits for its
swap takes 1 / T of its bytes on each GPU. vLLM's loaders take entire tensors and cut them themselves. So in the swap
the processes put the tensors together one after another, by a gather over vLLM's own group.

Each process sums its part once it is complete, and the worker (receiver.py) compares the digest of all of them. So
missing rows and changed bytes are noticed, at a cost that does not grow with the number of senders.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from services.process.rendezvous import Rendezvous
from services.weights.checksum import element_sum
from services.weights.link import Link
from services.weights.pack import ITEM_SIZES, Manifest, Share, cut, layout
from services.weights.registry import Round
from services.weights.shared_memory import imported

RECEIVING, RECEIVED = "receiving", ""
Gather = Callable[[Tensor], Tensor]
"""Concatenates the tensors [E] of all processes to [T E]. A collective of the engine's processes."""


class VersionPart:
    """The memory of part `index` of `count` of a version."""

    def __init__(self, manifest: Manifest, *, index: int, count: int, device: torch.device) -> None:
        self.manifest = manifest
        self._index, self._count = index, count
        runs, size = layout((entry.name, (-(-math.prod(entry.shape) // count),), entry.dtype) for entry in manifest)
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._own = [self.memory[run.offset : run.offset + run.nbytes] for run in runs]

    def put(self, share: Share, at: int, bucket: Tensor) -> None:
        """Copies the bytes of a bucket that belong to this part. `at`: offset of the bucket in the share's stream."""
        for piece, place in cut(share, at, len(bucket)):
            own = self._own[piece.tensor]
            begin, shift = self._index * len(own), place.start - piece.start
            low, high = max(piece.start, begin), min(piece.start + piece.size, begin + len(own))
            if low < high:
                own[low - begin : high - begin].copy_(bucket[low + shift : high + shift])

    def sums(self) -> Tensor:
        """Returns the checksum of each tensor's part, int64 [tensors]."""
        sums = [torch.zeros((), dtype=torch.int64, device=self.memory.device)]
        for entry, own in zip(self.manifest, self._own, strict=True):
            first = self._index * len(own) // ITEM_SIZES[entry.dtype]
            run = own.view(getattr(torch, entry.dtype))[: max(0, math.prod(entry.shape) - first)]
            sums.append(element_sum(run, first))
        return torch.stack(sums)[1:]

    def tensors(self, gather: Gather | None = None) -> Iterator[Tensor]:
        """Yields the entire tensors in the order of the manifest. With several parts it is a collective by `gather`."""
        for entry, own in zip(self.manifest, self._own, strict=True):
            flat = own.view(getattr(torch, entry.dtype))
            if self._count > 1:
                assert gather is not None
                flat = gather(flat)
            yield flat[: math.prod(entry.shape)].view(entry.shape)


class Inbox:
    """The receiving side of one process. `device`: where versions are kept, next to the model.

    `index`: number of this process among the `count` processes of its engine.
    """

    def __init__(self, device: torch.device, *, index: int = 0, count: int = 1) -> None:
        self._device, self._index, self._count = device, index, count
        self._part: VersionPart | None = None
        self._link: Link | None = None
        self._version = ""
        self._state: tuple[str, list[int]] = RECEIVED, []
        self._thread: threading.Thread | None = None

    def begin(self, transfer: Round, *, first: int, shared_gpu: int, address: str) -> None:
        """Begins to receive, and forgets the previous version. Blocks until the previous round is over.

        `first`: number of the engine's first process among all receivers. `shared_gpu`: number of the learner's rank on
        this GPU. `address`: of this machine.
        """
        if self._thread is not None:
            self._thread.join()
        self._version, self._state = transfer.version.name, (RECEIVING, [])
        self._thread = threading.Thread(target=self._run, args=(transfer, first, shared_gpu, address), daemon=True)
        self._thread.start()

    def state(self) -> tuple[str, list[int]]:
        """Returns RECEIVING, RECEIVED or why the round failed; then the checksums of a received part, else []."""
        return self._state

    def received(self, version: str) -> VersionPart:
        """Returns this process's part of the version of this name. Raises ValueError if it was not received."""
        if self._part is None or self._state[0] != RECEIVED or self._version != version:
            raise ValueError(f"{version} was not received ({self._state[0] or self._version or 'nothing was'})")
        return self._part

    def close(self) -> None:
        """Disconnects from the senders."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _run(self, transfer: Round, first: int, shared_gpu: int, address: str) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            part = self._memory(transfer.manifest)
            if transfer.way == "ipc":
                part.put(transfer.shares[shared_gpu], 0, imported(transfer.handles[shared_gpu], self._device))
            else:
                self._receive(transfer, first, address, part)
            self._state = RECEIVED, part.sums().tolist()
        except Exception as error:
            self.close()
            self._state = f"{type(error).__name__}: {error}", []

    def _memory(self, manifest: Manifest) -> VersionPart:
        if self._part is None or self._part.manifest != manifest:
            self._part = None  # the old memory goes first
            self._part = VersionPart(manifest, index=self._index, count=self._count, device=self._device)
        return self._part

    def _receive(self, transfer: Round, first: int, address: str, part: VersionPart) -> None:
        senders, receivers = len(transfer.shares), transfer.receivers
        if self._link is None or self._link.where != transfer.group:
            self.close()
            rank, world = senders + first + self._index, senders + receivers
            self._link = Link(Rendezvous(address, rank, world), transfer.group, rank=rank, world=world,
                              device=self._device)
        self._link.begin(transfer.version.name, transfer.seconds)
        for sender, at, bucket in self._link.buckets(transfer.sizes):
            part.put(transfer.shares[sender], at, bucket)
