"""Receives versions in vLLM's process, beside its engine: a thread fills memory of its own while requests go on.

    begin     a thread joins the links, or opens the learner's memory, and reads the streams of the round
    state     receiving, held, or why it failed
    held      the version that was received, for the swap while requests pause

Each process of an engine reads all streams, sums what it reads, and keeps its part (version_part.py). The memory of the
part stays for the versions that follow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import Tensor

from rollout.transfer.version_part import VersionPart
from services.process.rendezvous import Rendezvous
from services.weights.checksum import combined, element_sum
from services.weights.links import Link, RoundEnd
from services.weights.rounds import Round, check_whole, elements, places
from services.weights.shared_memory import imported

RECEIVING, HELD = "receiving", "held"


class Inbox:
    """One process that receives. `device`: where the versions are kept; the model is there too.

    `index`: number of this process among the `count` processes of its engine.
    """

    def __init__(self, device: torch.device, *, index: int = 0, count: int = 1) -> None:
        self._device, self._index, self._count = device, index, count
        self._part: VersionPart | None = None
        self._links: tuple[str, object, list[Link]] = ("", None, [])
        self._round: Round | None = None
        self._state = ""
        self._thread: threading.Thread | None = None

    def begin(self, found: Round, *, receiver: int, shared_gpu: int, address: str) -> None:
        """Begins to receive, and forgets the version before. The round before must be over.

        `receiver`: number of this process among all receivers. `shared_gpu`: number of the learner's rank on this GPU.
        `address`: of this machine.
        """
        if self._thread is not None:
            self._thread.join()
        self._round, self._state = found, RECEIVING
        self._thread = threading.Thread(target=self._run, args=(found, receiver, shared_gpu, address), daemon=True)
        self._thread.start()

    def state(self) -> str:
        """Returns RECEIVING, HELD, or why the last round failed."""
        return self._state

    def _run(self, found: Round, receiver: int, shared_gpu: int, address: str) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            read = found.read_by(shared_gpu)
            check_whole(found.manifest, [found.shares[sender] for sender in read])
            self._receive(found, read, receiver, address)
            self._state = HELD
        except Exception as error:
            self._unlink()
            self._state = f"{type(error).__name__}: {error}"

    def _receive(self, found: Round, read: list[int], receiver: int, address: str) -> None:
        end, part = RoundEnd(found.seconds), self._memory(found)
        links = self._linked(found, receiver, address, end) if found.way == "nccl" else []
        sums = torch.zeros(len(found.manifest), dtype=torch.int64, device=self._device)
        # One sender after another, in the same order everywhere: a receiver's own link is full with one already.
        for sender in read:
            share = found.shares[sender]
            buckets: Iterable[Tensor] = (
                links[sender].receive(places(found.manifest, share)[1], end) if links
                else [imported(found.handles[sender], self._device)])
            for tensor, first, run in elements(found.manifest, share, buckets):
                part.put(tensor, first, run)
                sums[tensor] += element_sum(run, first)
        arrived = combined(found.manifest, sums.tolist())
        if arrived != found.version.digest:
            raise ValueError(f"weights arrived with digest {arrived}, expected {found.version.digest}")

    def _memory(self, found: Round) -> VersionPart:
        if self._part is None or self._part.manifest != found.manifest:
            self._part = None  # the old memory goes first
            self._part = VersionPart(found.manifest, index=self._index, count=self._count, device=self._device)
        return self._part

    def _linked(self, found: Round, receiver: int, address: str, end: RoundEnd) -> list[Link]:
        if self._links[0] != found.group:
            self._unlink()
            senders, world = len(found.shares), len(found.shares) + found.receivers
            store = Rendezvous(address, senders + receiver, world).join(found.group, end.left)
            self._links = found.group, store, []
        _, store, links = self._links
        end.meets(store, found.version.name)
        for sender in range(len(links), len(found.shares)):
            links.append(Link(store, str(sender), rank=1 + receiver, world=1 + found.receivers, device=self._device,
                              end=end))
        return links

    def _unlink(self) -> None:
        links, self._links = self._links[2], ("", None, [])
        for link in links:
            link.close()

    def held(self, version: str) -> VersionPart:
        """Returns this process's part of the version of this name. Raises ValueError if it is not held."""
        if self._round is None or self._part is None or self._state != HELD or self._round.version.name != version:
            raise ValueError(f"{version} is not held ({self._state or 'nothing was received'})")
        return self._part

    def close(self) -> None:
        """Ends the links."""
        self._unlink()
