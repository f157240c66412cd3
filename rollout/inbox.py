"""Receives versions in vLLM's process, beside its engine: a thread fills memory of its own while requests go on.

    begin     a thread joins the links, or opens the learner's memory, and reads the streams of the round
    state     receiving, held, or why it failed
    tensors   the tensors of the version that is held, for the swap while requests pause

The memory stays for the versions that follow. It takes c P bytes, on each GPU of an engine over several, because vLLM's
loaders cut whole tensors themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from services.process.rendezvous import Rendezvous
from services.weights.checksum import combined, element_sum
from services.weights.links import Deadline, Link
from services.weights.pack import ITEM_SIZES
from services.weights.rounds import Round, check_whole, places, row_elements
from services.weights.shared_memory import imported

RECEIVING, HELD = "receiving", "held"


class Inbox:
    """One process that receives. `device`: where the versions are kept; the model is there too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._links: tuple[str, list[Link]] = ("", [])
        self._round: Round | None = None
        self._read: list[int] = []
        self._state = ""
        self._thread: threading.Thread | None = None

    def begin(self, found: Round, *, receiver: int, card: int, address: str) -> None:
        """Begins to receive, and forgets the version before. The round before must be over.

        `receiver`: number of this process among all receivers. `card`: number of the learner's rank on this GPU.
        `address`: of this machine.
        """
        if self._thread is not None:
            self._thread.join()
        self._round, self._read, self._state = found, found.read_by(card), RECEIVING
        self._thread = threading.Thread(target=self._run, args=(found, receiver, address), daemon=True)
        self._thread.start()

    def state(self) -> str:
        """Returns RECEIVING, HELD, or why the last round failed."""
        return self._state

    def _run(self, found: Round, receiver: int, address: str) -> None:
        try:
            self._receive(found, receiver, address)
            self._state = HELD
        except Exception as error:
            self._unlink()
            self._state = f"{type(error).__name__}: {error}"

    def _receive(self, found: Round, receiver: int, address: str) -> None:
        deadline = Deadline(found.seconds)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        check_whole(found.manifest, [found.shares[sender] for sender in self._read])
        streams = self._streams(found)
        if found.way == "ipc":
            for sender, stream in zip(self._read, streams, strict=True):
                stream.copy_(imported(found.handles[sender], self._device))
        else:
            # One sender after another, in the same order everywhere: a receiver's own link is full with one already.
            links = self._linked(found, receiver, address, deadline)
            for sender, stream in zip(self._read, streams, strict=True):
                links[sender].broadcast(stream, deadline)
        arrived = self._digest(found)
        if arrived != found.version.digest:
            raise ValueError(f"weights arrived with digest {arrived}, expected {found.version.digest}")

    def _streams(self, found: Round) -> list[Tensor]:
        """Returns the place of each stream in this process's memory."""
        sizes = [places(found.manifest, found.shares[sender])[1] for sender in self._read]
        if len(self._memory) != sum(sizes):
            self._memory = torch.empty(0, dtype=torch.uint8, device=self._device)  # the old memory goes first
            self._memory = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        return list(self._memory.split(sizes))

    def _linked(self, found: Round, receiver: int, address: str, deadline: Deadline) -> list[Link]:
        if self._links[0] != found.group:
            self._unlink()
            senders, world = len(found.shares), len(found.shares) + found.receivers
            store = Rendezvous(address, senders + receiver, world).join(found.group, deadline.left)
            links: list[Link] = []
            self._links = found.group, links
            for sender in range(senders):
                links.append(Link(store, str(sender), rank=1 + receiver, world=1 + found.receivers,
                                  device=self._device, deadline=deadline))
        return self._links[1]

    def _unlink(self) -> None:
        links, self._links = self._links[1], ("", [])
        for link in links:
            link.close()

    def _pieces(self, found: Round) -> Iterator[tuple[int, int, Tensor]]:
        """Yields the tensor's index, the first row and the rows of each piece, as views into the memory."""
        for sender, stream in zip(self._read, self._streams(found), strict=True):
            share = found.shares[sender]
            for piece, at in zip(share, places(found.manifest, share)[0], strict=True):
                entry = found.manifest[piece.tensor]
                size = piece.rows * row_elements(entry) * ITEM_SIZES[entry.dtype]
                rows = stream[at : at + size].view(getattr(torch, entry.dtype))
                yield piece.tensor, piece.first, rows.view(piece.rows, *entry.shape[1:])

    def _digest(self, found: Round) -> str:
        sums = torch.zeros(len(found.manifest), dtype=torch.int64, device=self._device)
        for index, first, rows in self._pieces(found):
            sums[index] += element_sum(rows, first * row_elements(found.manifest[index]))
        return combined(found.manifest, sums.tolist())

    def tensors(self, version: str) -> dict[str, Tensor]:
        """Returns the tensors by name: views, if one sender had all of a tensor. Raises ValueError for another version.
        """
        found = self._round
        if found is None or self._state != HELD or found.version.name != version:
            raise ValueError(f"{version} is not held ({self._state or 'nothing was received'})")
        rows: dict[int, list[tuple[int, Tensor]]] = {}
        for index, first, part in self._pieces(found):
            rows.setdefault(index, []).append((first, part))
        tensors = {}
        for index, entry in enumerate(found.manifest):
            parts = [part for _, part in sorted(rows[index], key=lambda row: row[0])]
            tensors[entry.name] = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(entry.shape)
        return tensors

    def close(self) -> None:
        """Ends the links."""
        self._unlink()
