"""One rank's part in sending weights (services/weights/channel.py). Rank 0's calls command the other ranks.

A *stream* is a snapshot of a rank's pieces on its device. With P parameters of c bytes it has c P / R for `nccl`,
where the R ranks with one copy of the model send their own rows, and c P for `ipc`, where the ranks gather tensor by
tensor for the sampler that shares their GPU. It stays until the next snapshot, so that it can be copied to host memory
while training continues. The memory for `ipc` is allocated once: torch would never free that of a version without
receivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from learner.model.lora import DOWN, UP, adapter_scale, is_adapter, merged
from learner.model.policy import Policy, full_tensor
from learner.rank_group import RankGroup
from services.process.rendezvous import Rendezvous
from services.process.threads import started
from services.weights.checksum import combined, element_sum
from services.weights.link import Link
from services.weights.pack import Entry, Manifest, Packed, Share, TensorPiece, digest, layout
from services.weights.registry import Round
from services.weights.shared_memory import exported, imported


class PolicyWeights:
    """The policy's tensors and this rank's piece of each, tied entries included and adapters merged.

    `dtype`: the number format of the sampler. `gathers`: whether a rank's piece is the entire tensor. Otherwise it is
    the rank's own rows; a tensor that is not sharded is the piece of rank 0.
    """

    def __init__(self, policy: Policy, dtype: torch.dtype, *, rank: int, gathers: bool) -> None:
        self._policy, self._dtype, self._rank, self._gathers = policy, dtype, rank, gathers
        state = policy.hf.state_dict()
        self.manifest, self.size = layout((name, tuple(value.shape), str(self._format(value)).removeprefix("torch."))
                                          for name, value in state.items() if not is_adapter(name))
        self.share: Share = [self._piece(index, entry, state[entry.name]) for index, entry in enumerate(self.manifest)]
        """One piece of each tensor, in the order of the manifest; empty where this rank has no rows."""

    def pieces(self) -> Iterator[Tensor]:
        """Yields the pieces in the order of the manifest, flat. They may be the model's memory, and change with it.

        A collective of the ranks with one copy of the model if tensors are gathered, or if there are adapters.
        """
        state, scale = self._policy.hf.state_dict(), adapter_scale(self._policy)
        for entry, piece in zip(self.manifest, self.share, strict=True):
            stem, value = entry.name.removesuffix("weight"), state[entry.name]
            part = self._part(value)
            if stem + DOWN in state:
                up = self._part(state[stem + UP])  # its rows are sharded like those of the weight
                part = merged(part, full_tensor(state[stem + DOWN]), up, scale)
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
        return value.to_local() if isinstance(value, DTensor) and not self._gathers else full_tensor(value)


HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A version on the ranks' devices. `shares` and `handles` (of `ipc`) are in the order of the senders."""

    digest: str
    manifest: Manifest
    shares: list[Share]
    handles: list[bytes]


class RankSender:
    """This rank's policy and its part in sending it. All ranks create theirs together, which is a collective.

    `dtype`: the number format of the sampler. `shards`: ranks over which one copy of the model is sharded. `ipc`:
    whether snapshots are for `ipc`, else for `nccl`.
    """

    def __init__(self, policy: Policy, group: RankGroup, *, dtype: torch.dtype, shards: int, ipc: bool) -> None:
        self._group, self._ipc = group, ipc
        self._weights = PolicyWeights(policy, dtype, rank=group.rank, gathers=ipc)
        self._senders = list(range(group.world)) if ipc or shards == group.world else group.nodes[0]
        every = group.all_gather(self._weights.share)
        self._shares: list[Share] = [every[rank] for rank in self._senders]
        self._kept = ExitStack()
        self._exported: tuple[Tensor, Callable[[], bytes]] | None = None
        self._stream: Tensor | None = None
        self._copying: Future[Any] | None = None
        self._link: Link | None = None
        self.commands: dict[str, Callable[[Any], object]] = {
            "pack": self._pack, "copy": self._copy, "snapshot": lambda _: self._snapshot(),
            "send": self._send}
        """The commands of rank 0 to the other ranks."""

    def pack(self) -> Packed:
        """Returns the current weights in host memory, without a snapshot."""
        self._settle()
        with exported(self._weights.size, HOST) as (memory, handle):
            self._group.send_command("pack", handle())
            self._fill(memory, self._weights.pieces())
        return self._packed(memory)

    def copy(self, snapshot_digest: str) -> Future[Packed]:
        """Begins to copy the last snapshot, which has this digest, to host memory. The weights may change meanwhile."""
        self._settle()
        held = ExitStack()
        memory, handle = held.enter_context(exported(self._weights.size, HOST))
        self._group.send_command("copy", handle())

        def filled() -> Packed:
            with held:
                self._fill_from_stream(memory)
            return self._packed(memory, snapshot_digest)

        self._copying = started(filled, "copy")
        return self._copying

    def snapshot(self) -> Snapshot:
        """Waits for the last copy, then copies the weights into a stream on each sender's device, with their digest."""
        self._group.send_command("snapshot")
        return self._snapshot()

    def offer(self, receivers: int) -> str:
        """Returns the address where all senders meet this number of receivers."""
        meeting = Rendezvous(self._group.node, 0, len(self._senders) + receivers)
        return self._connect(meeting, meeting.offer(), receivers).where

    def send(self, transfer: Round, abort_reason: Callable[[], str]) -> None:
        """Broadcasts the streams if the round has an address. Receivers report failures.

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

    def _packed(self, memory: Tensor, snapshot_digest: str = "") -> Packed:
        manifest, buffer = self._weights.manifest, memory.numpy()
        return Packed(manifest=manifest, buffer=buffer, digest=snapshot_digest or digest(manifest, buffer))

    def _memory(self, handle: bytes) -> Tensor | None:
        """Returns rank 0's memory, in which the ranks of its machine write."""
        return imported(handle, HOST) if self._group.rank in self._group.nodes[0] else None

    def _pack(self, handle: bytes) -> None:
        self._settle()
        self._fill(self._memory(handle), self._weights.pieces())

    def _copy(self, handle: bytes) -> None:
        self._settle()
        memory = self._memory(handle)
        self._copying = started(lambda: self._fill_from_stream(memory), "copy")

    def _settle(self) -> None:
        """Waits for the last copy. Raises its error."""
        if self._copying is not None:
            self._copying.result()

    def _fill_from_stream(self, memory: Tensor | None) -> None:
        # In the CUDA stream of the training step, copies and kernels would wait for each other.
        own = torch.cuda.Stream(self._group.device) if self._group.device.type == "cuda" else None
        with torch.cuda.stream(own) if own else nullcontext():
            parts = () if self._stream is None else self._stream.split([piece.size for piece in self._weights.share])
            self._fill(memory, parts)

    def _fill(self, memory: Tensor | None, parts: Iterable[Tensor]) -> None:
        """Writes this rank's pieces into rank 0's memory, or sends them to rank 0 from another machine.

        Returns once rank 0 has the pieces of all senders. With `ipc` rank 0 has all rows itself.
        """
        group = self._group
        if group.rank not in (self._senders[:1] if self._ipc else self._senders):
            for _ in parts:  # all ranks take part in gathering a tensor
                pass
        elif memory is not None:
            self._write(memory, self._weights.share, parts)
        else:
            dist.send(torch.cat([part.cpu().view(torch.uint8) for part in parts]), 0, group=group.copiers)
        if group.rank == 0 and not self._ipc:
            for sender, share in zip(self._senders, self._shares, strict=True):
                if sender not in group.nodes[0]:
                    sizes = [piece.size for piece in share]
                    stream = torch.empty(sum(sizes), dtype=torch.uint8)
                    dist.recv(stream, sender, group=group.copiers)
                    assert memory is not None
                    self._write(memory, share, stream.split(sizes))
        if group.world > 1:
            dist.barrier(group=group.copiers)

    def _write(self, memory: Tensor, share: Share, parts: Iterable[Tensor]) -> None:
        for entry, piece, part in zip(self._weights.manifest, share, parts, strict=True):
            place = entry.offset + piece.start
            memory[place : place + piece.size].copy_(part.view(torch.uint8))

    def _snapshot(self) -> Snapshot:
        self._settle()
        weights, handle, sends = self._weights, b"", self._group.rank in self._senders
        size = sum(piece.size for piece in weights.share)
        self._stream = None  # frees the old memory first
        if sends and self._ipc:
            self._exported = self._exported or self._kept.enter_context(exported(size, self._group.device))
            self._stream, handle = self._exported[0], self._exported[1]()
        elif sends:
            self._stream = torch.empty(size, dtype=torch.uint8, device=self._group.device)
        sums, place = torch.zeros(len(weights.manifest), dtype=torch.int64, device=self._group.device), 0
        for index, (piece, part) in enumerate(zip(weights.share, weights.pieces(), strict=True)):
            if self._stream is not None and piece.size:
                self._stream[place : place + piece.size].copy_(part.view(torch.uint8))
                sums[index] = element_sum(part, piece.start // part.element_size())
                place += piece.size
        # tolist waits for the device, so that other processes may read the stream.
        every = self._group.all_gather((sums.tolist(), handle))
        totals, handles = zip(*(every[rank] for rank in self._senders), strict=True)
        return Snapshot(
            digest=combined(weights.manifest, *(totals[:1] if self._ipc else totals)),  # with ipc each has all rows
            manifest=weights.manifest, shares=self._shares, handles=list(handles) if self._ipc else [])

    def _send(self, transfer: Round, abort_reason: Callable[[], str] = str) -> None:
        if self._stream is None or not transfer.group:
            return
        link = self._link
        if link is None or link.where != transfer.group:
            world = len(self._senders) + transfer.receivers
            meeting = Rendezvous(self._group.node, self._senders.index(self._group.rank), world)
            link = self._connect(meeting, transfer.group, transfer.receivers)
        try:
            link.begin(transfer.version.name, transfer.seconds, abort_reason)
            for _ in link.buckets(transfer.sizes, self._stream):
                pass
        except (RuntimeError, TimeoutError) as error:
            link.abort(f"rank {self._group.rank}: {error}")
            link.close()

    def _connect(self, meeting: Rendezvous, where: str, receivers: int) -> Link:
        self.close()
        self._link = Link(meeting, where, rank=self._senders.index(self._group.rank),
                          world=len(self._senders) + receivers, device=self._group.device)
        return self._link
