"""One rank's part in sending weights (services/weights/channel.py). Rank 0 calls it, and so commands the other ranks.

A stream takes c P / R bytes on each GPU for `nccl`, where every rank sends its own rows, and c P for `ipc`, where the
ranks gather tensor by tensor for the sampler that shares their GPU. The memory for `ipc` is allocated once: a version
may have no receivers, and then torch would never free it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from learner.model.policy import Policy
from learner.rank_group import RankGroup
from learner.weights.policy_weights import PolicyWeights
from services.process.rendezvous import Rendezvous
from services.weights.checksum import combined
from services.weights.link import Link
from services.weights.pack import Manifest, Packed, Share, digest
from services.weights.registry import Round
from services.weights.shared_memory import exported, imported

HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A version on the ranks' devices. `shares` and `handles` (of `ipc`) are in the order of the senders."""

    digest: str
    manifest: Manifest
    shares: list[Share]
    handles: list[bytes]


class RankSender:
    """This rank's policy and its part in sending it.

    `dtype`: the number format of the sampler. `shards`: ranks over which one copy of the model is sharded. `ipc`: way
    of snapshots.
    """

    def __init__(self, policy: Policy, group: RankGroup, *, dtype: torch.dtype, shards: int, ipc: bool) -> None:
        self._policy, self._group, self._dtype, self._ipc = policy, group, dtype, ipc
        self._gathers = shards > len(group.nodes[0])
        self._senders = list(range(group.world)) if ipc or shards == group.world else group.nodes[0]
        self._kept = ExitStack()
        self._exported: tuple[Tensor, Callable[[], bytes]] | None = None
        self._stream: Tensor | None = None
        self._link: Link | None = None
        self.commands: dict[str, Callable[[Any], object]] = {
            "pack": self._pack, "snapshot": lambda _: self._snapshot(), "send": self._send}
        """The commands of rank 0 to the other ranks."""

    def pack(self, known: str = "") -> Packed:
        """Returns the weights in host memory. `known`: their digest, if it has been computed already.

        The ranks of rank 0's machine write their rows into one buffer that they share. No tensor is gathered, unless
        the model is sharded over several machines; then rank 0 writes all of them.
        """
        weights = self._weights(gathers=self._gathers)
        with exported(weights.size, HOST) as (memory, handle):
            self._group.send_command("pack", handle())
            weights.copy(memory, weights.places)
            self._group.barrier()  # the other ranks have written their rows
        buffer = memory.numpy()
        return Packed(manifest=weights.manifest, buffer=buffer, digest=known or digest(weights.manifest, buffer))

    def snapshot(self) -> Snapshot:
        """Copies the weights into a stream on each sender's device, and sums them."""
        self._group.send_command("snapshot")
        return self._snapshot()

    def offer(self, receivers: int) -> str:
        """Returns the place where all senders meet so many receivers."""
        meeting = Rendezvous(self._group.node, 0, len(self._senders) + receivers)
        return self._connect(meeting, meeting.offer(), receivers).where

    def send(self, transfer: Round, abort_reason: Callable[[], str]) -> None:
        """Broadcasts the streams if the round has a place to meet, and frees them. Receivers report failures.

        `abort_reason` returns why the round has to end early, or "".
        """
        self._group.send_command("send", transfer)
        self._send(transfer, abort_reason)

    def abort(self, reason: str) -> None:
        """Ends the round early for all senders and receivers, if they are connected."""
        if self._link is not None:
            self._link.abort(reason)

    def close(self) -> None:
        """Disconnects this rank from the receivers."""
        if self._link is not None:
            self._link.close()

    def _weights(self, *, gathers: bool) -> PolicyWeights:
        return PolicyWeights(self._policy, self._dtype, rank=self._group.rank, gathers=gathers)

    def _pack(self, handle: bytes) -> None:
        weights = self._weights(gathers=self._gathers)
        if self._gathers:
            weights.copy(None, weights.places)
        elif self._group.rank in self._group.nodes[0]:
            weights.copy(imported(handle, HOST), weights.places)
        self._group.barrier()

    def _snapshot(self) -> Snapshot:
        weights, handle, sends = self._weights(gathers=self._ipc), b"", self._group.rank in self._senders
        self._stream = None  # the old memory goes first
        *places, size = accumulate((piece.size for piece in weights.share), initial=0)
        if sends and self._ipc:
            self._exported = self._exported or self._kept.enter_context(exported(size, self._group.device))
            self._stream, handle = self._exported[0], self._exported[1]()
        elif sends:
            self._stream = torch.empty(size, dtype=torch.uint8, device=self._group.device)
        sums = torch.zeros(len(places), dtype=torch.int64, device=self._group.device)
        weights.copy(self._stream, places, sums)
        # tolist waits for the device, so that other processes may read the stream.
        every = self._group.all_gather((weights.share, sums.tolist(), handle))
        shares, totals, handles = zip(*(every[rank] for rank in self._senders), strict=True)
        return Snapshot(
            digest=combined(weights.manifest, *(totals[:1] if self._ipc else totals)),  # with ipc each has all rows
            manifest=weights.manifest, shares=list(shares), handles=list(handles) if self._ipc else [])

    def _send(self, transfer: Round, abort_reason: Callable[[], str] = str) -> None:
        stream, self._stream = self._stream, None
        if stream is None or not transfer.group:
            return
        link = self._link
        if link is None or link.where != transfer.group:
            world = len(self._senders) + transfer.receivers
            meeting = Rendezvous(self._group.node, self._senders.index(self._group.rank), world)
            link = self._connect(meeting, transfer.group, transfer.receivers)
        try:
            link.begin(transfer.version.name, transfer.seconds, abort_reason)
            for _ in link.buckets(transfer.sizes, stream):
                pass
        except (RuntimeError, TimeoutError) as error:
            link.abort(f"rank {self._group.rank}: {error}")
            link.close()

    def _connect(self, meeting: Rendezvous, where: str, receivers: int) -> Link:
        self.close()
        self._link = Link(meeting, where, rank=self._senders.index(self._group.rank),
                          world=len(self._senders) + receivers, device=self._group.device)
        return self._link
