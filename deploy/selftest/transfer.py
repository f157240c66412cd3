"""Sends the weights of a model into an engine as a learner of one rank does, from GPU to GPU, and takes the times.

On CPUs gloo stands in for NCCL, and shared host memory for CUDA IPC. All other code is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.engine.engine import Engine
from rollout.transfer.receiver import Receiver
from services.process.garbage import collect_garbage
from services.weights.meeting import Meeting
from services.weights.rounds import Participant, Way

SECONDS = 120.0
LOOK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """The times of one version."""

    size: int
    """Bytes of the version."""
    sending: float
    """Seconds from the learner's weights to the engine's memory: snapshot, digest, the way, digest. Requests go on."""
    pause: float
    """Seconds for which the swap paused the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """The only rank of a learner (learner/rank_group.py), without a process group: this process may have one."""

    device: Any
    rank: int = 0
    node: str = "127.0.0.1"

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


async def trips(engine: Engine, model: Path, dtype: str, way: Way, *, rounds: int, incarnation: int,
                gpu: int | None = None, processes: int = 1) -> list[Trip]:
    """Sends the model in the folder `model` so many times. `gpu`: number of the sender's GPU; None: a CPU sends.

    `processes`: number of processes of the engine. Raises RuntimeError if a version does not arrive.
    """
    import torch

    from learner.model.policy import load_policy
    from learner.weights.shared_weights import PolicyWeights

    gang: Any = _Alone(device=torch.device("cpu") if gpu is None else torch.device("cuda", gpu))
    meeting = Meeting()

    async def ask(method: str, *arguments: Any) -> Any:
        return getattr(meeting, method)(*arguments)

    receiver = Receiver(engine, Participant(worker="bench", processes=processes), ask, address="127.0.0.1")
    receiving = asyncio.create_task(receiver.run())
    try:
        return await _sent(
            engine, receiver, meeting, gang=gang, way=way, versions=[(incarnation, step) for step in range(rounds)],
            load=lambda: PolicyWeights(load_policy(model, gang.device), getattr(torch, dtype), rank=0,
                                       gathers=way == "ipc"))
    finally:
        receiving.cancel()
        await asyncio.wait([receiving])
        if gpu is not None:
            collect_garbage()
            torch.cuda.empty_cache()  # this process goes on, beside others that use the GPU


async def _sent(engine: Engine, receiver: Receiver, meeting: Meeting, *, gang: Any, way: Way,
                load: Callable[[], Any], versions: Sequence[tuple[int, int]]) -> list[Trip]:
    """Loads the weights, and lets them go at its end. `versions`: incarnation and step of each."""
    from learner.weights.sender import WeightSender
    from learner.weights.transfer import Transfer

    weights = load()
    sender = WeightSender(weights, gang, way=way, senders=[0])
    transfer = Transfer(sender=sender, ask=lambda method, *rest: getattr(meeting, method)(*rest), way=way,
                        seconds=SECONDS)
    while not meeting.members():  # noqa: ASYNC110 - plain state, which nobody signals
        await asyncio.sleep(LOOK_S)
    found = []
    for named in versions:
        started = time.monotonic()
        version, everywhere = await asyncio.to_thread(transfer.send, *named)
        sending = time.monotonic() - started
        if not everywhere or not await receiver.swap(version):
            raise RuntimeError(f"the version did not arrive: {meeting.outcomes() or 'nobody told anything'}")
        found.append(Trip(size=weights.size, sending=sending, pause=engine.paused_seconds))
    sender.unlink()
    return found
