"""One rank's side of a transfer between GPUs: a snapshot of its weights, and the link on which it sends that.

    prepare   copies this rank's weights, in the sampler's number format, into one stream, and sums them: a collective
    send      nccl: broadcasts the stream to the receivers; ipc: nothing, because they read it by themselves
    end_round ends the sending and the receiving of all processes early
    release   gives the memory of the snapshot back; with ipc it stays for the next one

The snapshot makes the sending independent of the other ranks: nothing is gathered meanwhile, so that a receiver that
dies holds up only the links, which rank 0 ends when it misses a member. It takes c P / R bytes on each GPU for `nccl`,
where every rank sends its own shards, and c P for `ipc`, where the ranks gather tensor by tensor for the sampler that
shares their GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.rank_group import RankGroup
from learner.weights.shared_weights import PolicyWeights
from services.process.rendezvous import Rendezvous
from services.telemetry.logs import get_logger
from services.weights.checksum import combined, element_sum
from services.weights.links import Link, RoundEnd
from services.weights.pack import Manifest
from services.weights.rounds import Round, Share, Way, places, row_elements
from services.weights.shared_memory import exported

log = get_logger("transfer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A version that is ready to be sent, as rank 0 describes it."""

    digest: str
    manifest: Manifest
    shares: list[Share]
    """One share for each sender, in the order of the ranks."""
    handles: list[bytes]
    """One for each sender; empty for `nccl`."""


class WeightSender:
    """A rank that takes part in transfers. Making it is a collective of all ranks.

    `weights` must gather for `ipc`, and must not for `nccl`. `senders`: the ranks, rank 0 first, that hold all shards
    together.
    """

    def __init__(self, weights: PolicyWeights, gang: RankGroup, *, way: Way, senders: list[int]) -> None:
        assert weights.gathers == (way == "ipc")
        assert senders[0] == 0
        self._weights, self._gang, self._way, self._senders = weights, gang, way, senders
        share = [piece for piece in weights.pieces() if piece.rows] if gang.rank in senders else []
        shares: list[Share] = gang.all_gather(share)
        self.shares = [shares[rank] for rank in senders]
        """One share for each sender, in the order of `senders`."""
        self._offsets, self._size = places(weights.manifest, share)
        self._share = share
        self._held = ExitStack()
        self._exported: tuple[Tensor, Callable[[], bytes]] | None = None
        self._stream: Tensor | None = None
        self._meeting: Rendezvous | None = None
        self._store: tuple[str, Any] = ("", None)
        self._link: Link | None = None
        self._end: RoundEnd | None = None

    def prepare(self) -> Prepared:
        """Takes the snapshot. A collective of all ranks."""
        self.release()
        handle = self._allocate() if self._share else b""
        found: list[tuple[list[int], bytes]] = self._gang.all_gather((self._snapshot(), handle))
        mine = [found[rank] for rank in self._senders]
        several = mine[:1] if self._way == "ipc" else mine  # with ipc each sender has all rows
        totals = [sum(column) for column in zip(*(sums for sums, _ in several), strict=True)]
        return Prepared(
            digest=combined(self._weights.manifest, totals), manifest=self._weights.manifest, shares=self.shares,
            handles=[handle for _, handle in mine] if self._way == "ipc" else [])

    def _allocate(self) -> bytes:
        """Makes the stream's memory. Returns a handle, if receivers open it.

        That memory is made once: a version may have no receivers, and then torch would never free it.
        """
        if self._way == "nccl":
            self._stream = torch.empty(self._size, dtype=torch.uint8, device=self._gang.device)
            return b""
        if self._exported is None:
            self._exported = self._held.enter_context(exported(self._size, self._gang.device))
        self._stream, share = self._exported
        return share()

    def _snapshot(self) -> list[int]:
        """Fills the stream. Returns its sum of each tensor, which is zero for tensors of which it has no rows."""
        manifest = self._weights.manifest
        at = {piece.tensor: (piece, offset) for piece, offset in zip(self._share, self._offsets, strict=True)}
        sums = torch.zeros(len(manifest), dtype=torch.int64, device=self._gang.device)
        for index, part in enumerate(self._weights.parts()):
            if index in at and self._stream is not None:
                (piece, offset), flat = at[index], part.contiguous().reshape(-1).view(torch.uint8)
                self._stream[offset : offset + len(flat)].copy_(flat)
                sums[index] = element_sum(part, piece.first * row_elements(manifest[index]))
        return sums.tolist()  # waits for the device, so that other processes may read the snapshot

    def offer_links(self, receivers: int) -> str:
        """Returns where new links of all senders and so many receivers meet. Called on rank 0."""
        self._meeting = Rendezvous(self._gang.node, 0, len(self._senders) + receivers)
        return self._meeting.offer()

    def send(self, found: Round, lost: Callable[[], str] = str) -> None:
        """Broadcasts the snapshot, if the round has links. If that fails, the receivers say so.

        `lost`, on rank 0, returns why the round has to end early, or "".
        """
        self._end = None
        if self._stream is None or not found.group:
            return
        self._end = RoundEnd(found.seconds, lost)
        try:
            self._linked(found, self._end).send(self._stream, self._end)
        except (RuntimeError, TimeoutError) as error:
            self.unlink()
            self._end.tell(f"rank {self._gang.rank}: {error}")
            log.warning("transfer failed", rank=self._gang.rank, version=found.version.short, reason=str(error))

    def end_round(self, why: str) -> None:
        """Ends the round early, also for the other ranks and the receivers, if it has links. Called on rank 0."""
        if self._end is not None:
            self._end.tell(why)

    def _linked(self, found: Round, end: RoundEnd) -> Link:
        index, world = self._senders.index(self._gang.rank), len(self._senders) + found.receivers
        if self._store[0] != found.group:
            self.unlink()
            meeting, self._meeting = self._meeting or Rendezvous(self._gang.node, index, world), None
            self._store = found.group, meeting.join(found.group, end.left)
        end.meets(self._store[1], found.version.name)
        if self._link is None:
            self._link = Link(self._store[1], str(index), rank=0, world=1 + found.receivers, device=self._gang.device,
                              end=end)
        return self._link

    def unlink(self) -> None:
        """Ends the link. The store stays, through which the others hear of the end, until the next links are made."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def release(self) -> None:
        """Gives the snapshot's memory back, if no receiver has its handle."""
        self._stream = None
