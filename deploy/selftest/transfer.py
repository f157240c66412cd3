"""Sends the weights of a model into an engine as a learner of one rank does, from GPU to GPU, and measures the times.

On CPUs gloo stands in for NCCL, and shared host memory for CUDA IPC. All other code is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.selftest.scene import collect_garbage
from rollout.engine.engine import Engine
from rollout.weights.receiver import GpuReceiver, HostReceiver
from services.errors import EngineFault
from services.records import Version
from services.weights.canary import Canary
from services.weights.registry import Participant, TransferRegistry, Way

SECONDS = 120.0
"""Deadline of a transfer, and of the engine's first call of the registry."""
LOOK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A model that is sent to an engine."""

    model: Path
    """Its folder."""
    canary: Canary | None = None
    """Results of Hugging Face's code with this model (folder_canary). None: nothing is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """The times of one version."""

    size: int
    """Bytes of the version."""
    sending: float
    """Seconds from the learner's weights to the engine's memory, during requests: snapshot, digest, transfer, digest.
    """
    pause: float
    """Seconds for which the swap paused the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """The only rank of a learner (learner/rank_group.py), without a process group: this process may have one."""

    device: Any
    rank: int = 0
    world: int = 1
    node: str = "127.0.0.1"
    nodes: tuple[list[int], ...] = ([0],)

    def all_gather(self, value: Any) -> list[Any]:
        return [value]

    def send_command(self, *_: Any) -> None:
        pass

    def barrier(self) -> None:
        pass


async def trips(engine: Engine, sent: Sent, dtype: str, way: Way, *, rounds: int, incarnation: int,
                gpu: int | None = None, processes: int = 1) -> list[Trip]:
    """Sends a model `rounds` times. `gpu`: number of the sender's GPU; None: a CPU sends.

    `processes`: number of processes of the engine. Raises EngineFault if a version does not arrive, and WrongWeights if
    the engine computes something else.
    """
    import torch

    group: Any = _Alone(device=torch.device("cpu") if gpu is None else torch.device("cuda", gpu))
    registry = TransferRegistry()

    async def ask(method: str, *arguments: Any) -> Any:
        return getattr(registry, method)(*arguments)

    async def fetch(*_: Any) -> None:
        return None

    receiver = GpuReceiver(engine, HostReceiver(engine, fetch, seconds=SECONDS),
                           Participant(worker="bench", processes=processes), ask, address="127.0.0.1")
    receiving = asyncio.create_task(receiver.run())
    try:
        versions = [Version(incarnation=incarnation, step=step) for step in range(rounds)]
        return await _sent(registry, _Source(sent.model, dtype, way, group), engine, versions,
                           sent.canary)
    finally:
        receiving.cancel()
        await asyncio.wait([receiving])
        if gpu is not None:
            collect_garbage()
            torch.cuda.empty_cache()  # this process continues, alongside others that use the GPU


@dataclass(frozen=True, slots=True)
class _Source:
    """The model that is sent."""

    model: Path
    dtype: str
    way: Way
    group: Any

    def sender(self) -> Any:
        """Loads the weights, which are freed with the sender."""
        import torch

        from learner.model.policy import load_policy
        from learner.weights.rank_sender import RankSender

        return RankSender(load_policy(self.model, self.group.device), self.group, dtype=getattr(torch, self.dtype),
                          shards=1, ipc=self.way == "ipc")


async def _sent(registry: TransferRegistry, source: _Source, engine: Engine, versions: Sequence[Version],
                canary: Canary | None) -> list[Trip]:
    from learner.weights.sender import WeightSender

    ranks = source.sender()
    size = ranks.pack().buffer.nbytes
    sender = WeightSender(ranks, lambda *_: None, way=source.way, seconds=SECONDS,
                          ask=lambda method, *rest: getattr(registry, method)(*rest))
    deadline = time.monotonic() + SECONDS
    while not registry.members():  # plain state, which nobody signals
        if time.monotonic() > deadline:
            raise EngineFault(f"the engine did not join the transfers within {SECONDS:g} s")
        await asyncio.sleep(LOOK_S)
    results = []
    for unnamed in versions:
        started, live = time.monotonic(), list[float]()

        def send(unnamed: Version = unnamed, live: list[float] = live) -> Version:
            version = sender.snapshot(unnamed)
            sender.send(version, lambda _: live.append(time.monotonic()))
            return version

        version = await asyncio.to_thread(send)
        await engine.swap(version, canary)
        results.append(Trip(size=size, sending=live[0] - started, pause=engine.paused_seconds))
    ranks.close()
    return results
