"""The engine of the self-test: it starts beside memory that another process holds, decodes, and takes updates.

No bound on speed is judged on a CPU. There the same code shows that the test itself works.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from deploy.bench.selftest.sizes import Size
from deploy.bench.transfer import Trip, trips
from deploy.launch.cards import smi
from learner.selftest.table import Line
from rollout.engine import Engine, Sample
from services.records import Version
from services.weights.headers import folder_parameters
from services.weights.pack import ITEM_SIZES
from services.weights.rounds import Way

UPDATES = 5
GROWTH_MIB = 256
"""Memory in MiB that may be added between the first update and the last."""
FREED = 0.9
"""Share of its weights and KV cache that a sampler must give up in its sleep."""
PAUSE_S = 2.0
"""Longest pause of an update of 1.5B parameters on a GPU."""
SEND_S = 5.0
"""Longest time of a transfer of 1.5B parameters between GPUs, while requests go on."""
SENT = 3
WAYS: dict[Way, tuple[str, int]] = {"ipc": ("weights by CUDA IPC", 0), "nccl": ("weights by NCCL", 1)}
"""Name of each way, and number of the GPU that sends: NCCL refuses two processes on one."""
PARALLEL = "weights by NCCL to two GPUs"
HOLDER = """
import sys, torch
held = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


class EagerEngine(Engine):
    """The same engine without CUDA graphs."""

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"enforce_eager": True}


@contextmanager
def held_memory(gib: float) -> Iterator[None]:
    """Lets another process hold that much memory of the GPU during the block."""
    if not gib:
        yield
        return
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        yield
    finally:
        holder.communicate()


def engine_part(size: Size, model: Path, tell: Callable[[str], object]) -> list[Line]:
    """Returns the lines of the engine's part. `model`: a folder of sizes.make_model."""
    with held_memory(size.held_gib):
        lines, graphs = asyncio.run(_Trial(size, model, tell).run())
    tell("an engine over two GPUs")
    lines += asyncio.run(_parallel(size, model))
    tell("the engine without graphs")
    eager = asyncio.run(_eager(size, model))
    ratio = f"{graphs:,.0f} tokens/s, {graphs / eager:.2f} times eager mode"
    good = size.device == "cpu" or graphs > eager
    return [*lines, Line(name="graphs against eager", found=ratio, passed=good)]


async def _eager(size: Size, model: Path) -> float:
    engine = EagerEngine(model, _version(0, ""), config=size.rollout, dtype=size.dtype)
    try:
        await engine.start()
        await _sample(engine, size, "warm")
        return await _rate(engine, size)
    finally:
        await engine.close()


async def _parallel(size: Size, model: Path) -> list[Line]:
    """The same weights come to an engine over two GPUs, each of which keeps its half until the swap."""
    if size.device == "cpu" or len(smi("index")) < 3:
        return [Line(name=PARALLEL, found="needs three GPUs")]
    rollout = size.rollout.model_copy(update={"gpus": 1.0, "tensor_parallel": 2, "sleep": False})
    engine = Engine(model, _version(0, ""), config=rollout, dtype=size.dtype)
    try:
        await engine.start()
        before = await _sample(engine, size, "by host")
        found = await _trips(engine, model, size, "nccl", incarnation=2, gpu=2, processes=2)
        return [_sent(PARALLEL, found, size),
                _repeated(f"answers after {PARALLEL}", before, await _sample(engine, size, "nccl"))]
    finally:
        await engine.close()


@dataclass
class _Trial:
    """One engine from its start to its end."""

    size: Size
    model: Path
    tell: Callable[[str], object]
    lines: list[Line] = field(default_factory=list)

    async def run(self) -> tuple[list[Line], float]:
        """Returns the lines, and the tokens per second."""
        engine = Engine(self.model, _version(0, ""), config=self.size.rollout, dtype=self.size.dtype)
        try:
            self.tell("the engine starts")
            started = time.monotonic()
            await engine.start()
            beside = f"{time.monotonic() - started:.0f} s beside {self.size.held_gib:g} GiB of another process"
            self.lines.append(Line(name="engine starts on a shared card", found=beside, passed=True))
            self.tell("the engine samples")
            await self._repeats(engine)
            rate = await _rate(engine, self.size)
            self.tell("the engine takes updates")
            await self._updates(engine)
            self.tell("weights go from GPU to GPU")
            await self._transfers(engine)
            self.tell("the engine sleeps")
            await self._sleeps(engine)
        finally:
            await engine.close()
        return self.lines, rate

    async def _repeats(self, engine: Engine) -> None:
        one, two = await _sample(engine, self.size, "one"), await _sample(engine, self.size, "two")
        self.lines.append(_repeated("seeds repeat", one, two))

    async def _updates(self, engine: Engine) -> None:
        from services.weights.folder import pack_folder

        packed = await asyncio.to_thread(pack_folder, self.model, self.size.dtype)
        landed = asyncio.Event()
        flying = asyncio.create_task(_sample_until(landed, engine, self.size))
        seconds, memory = [], []
        for step in range(1, UPDATES + 1):
            await asyncio.sleep(0.2)
            await engine.update(_version(step, packed.digest), packed.manifest, packed.buffer)
            seconds.append(engine.paused_seconds)
            memory.append(used_mib(self.size))
        landed.set()
        samples = await flying
        split = sum(len(sample.spans) > 1 for sample in samples)
        whole = all(sample.finished == "stop" or len(sample.ids) == self.size.tokens for sample in samples)
        self.lines.append(Line(name="update in flight", passed=whole and split > 0,
                               found=f"{split} of {len(samples)} answers have tokens of several versions"))
        self.lines.append(Line(name="pause of an update", aim=f"under {PAUSE_S:g} s",
                               found=f"{min(seconds):.2f} s, {packed.buffer.nbytes / min(seconds) / 1e9:.2f} GB/s",
                               passed=self.size.device == "cpu" or min(seconds) < PAUSE_S))
        grown = memory[-1] - memory[0]
        self.lines.append(Line(name="five updates, flat memory", found=f"{grown:+,.0f} MiB",
                               aim=f"under {GROWTH_MIB} MiB", passed=grown < GROWTH_MIB))

    async def _transfers(self, engine: Engine) -> None:
        """The same weights come by each way, so that the answers stay."""
        before = await _sample(engine, self.size, "by host")
        for number, (way, (name, sender)) in enumerate(WAYS.items()):
            if self.size.device == "cuda" and len(smi("index")) <= sender:
                self.lines.append(Line(name=name, found="needs two GPUs"))
                continue
            found = await _trips(engine, self.model, self.size, way, incarnation=2 + number, gpu=sender)
            self.lines.append(_sent(name, found, self.size))
            self.lines.append(_repeated(f"answers after {name}", before, await _sample(engine, self.size, way)))

    async def _sleeps(self, engine: Engine) -> None:
        """The engine sleeps with requests in flight, which go on when it wakes up."""
        rollout, before = self.size.rollout, await _sample(engine, self.size, "before")
        flying = asyncio.create_task(_sample(engine, self.size, "dreams"))
        while not engine.kv_used and not flying.done():  # noqa: ASYNC110 - no event tells of the first step
            await asyncio.sleep(0.001)
        awake, started = used_mib(self.size), time.monotonic()
        await engine.sleep()
        asleep, slept = used_mib(self.size), time.monotonic() - started
        started = time.monotonic()
        await engine.wake()
        again, woken = used_mib(self.size), time.monotonic() - started
        weights = folder_parameters(self.model) * ITEM_SIZES[self.size.dtype] / 2**20
        planned = weights + 1024 * rollout.kv_cache_gb
        self.lines.append(Line(
            name="memory of a sampler that sleeps", aim=f"{planned:,.0f} MiB given, and taken again",
            found=f"{awake:,.0f} MiB awake, {asleep:,.0f} in {slept:.2f} s, {again:,.0f} in {woken:.2f} s",
            passed=self.size.device == "cpu" or (awake - asleep > FREED * planned and again - awake < GROWTH_MIB)))
        self.lines.append(_repeated("answers go on after a sleep", before, await flying))


async def _trips(engine: Engine, model: Path, size: Size, way: Way, *, incarnation: int, gpu: int,
                 processes: int = 1) -> list[Trip]:
    """Sends the weights while requests go on. `gpu`: number of the GPU that sends, if there are any."""
    landed = asyncio.Event()
    flying = asyncio.create_task(_sample_until(landed, engine, size))
    try:
        return await trips(engine, model, size.dtype, way, rounds=SENT, incarnation=incarnation,
                           gpu=gpu if size.device == "cuda" else None, processes=processes)
    finally:
        landed.set()
        await flying


def _sent(name: str, trips: list[Trip], size: Size) -> Line:
    best = min(trips, key=lambda trip: trip.sending)
    return Line(
        name=name, aim=f"under {SEND_S:g} s, and a pause under {PAUSE_S:g} s",
        found=f"{best.sending:.2f} s, {best.size / best.sending / 1e9:.2f} GB/s, pause {best.pause:.2f} s",
        passed=size.device == "cpu" or (best.sending < SEND_S and best.pause < PAUSE_S))


def _repeated(name: str, one: list[Sample], two: list[Sample]) -> Line:
    """Returns the line of two rounds of answers to the same seeds.

    Sums in another order may turn a near tie, so that a few of many answers may differ on a GPU.
    """
    same = sum(bool(np.array_equal(a.ids, b.ids)) for a, b in zip(one, two, strict=True))
    return Line(name=name, found=f"{same} of {len(one)} answers", passed=same >= 0.9 * len(one))


async def _sample(engine: Engine, size: Size, name: str) -> list[Sample]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, size.shape["vocab_size"], 64).tolist() for _ in range(size.requests)]
    return await asyncio.gather(*(
        engine.sample(prompt, temperature=1.0, seed=k, max_tokens=size.tokens, stop_token_ids=[],
                      request_id=f"{name}/{k}") for k, prompt in enumerate(prompts)))


async def _sample_until(end: asyncio.Event, engine: Engine, size: Size) -> list[Sample]:
    """Samples round after round until `end` is set, so that every update meets answers in flight, however fast."""
    samples: list[Sample] = []
    while not end.is_set():
        samples += await _sample(engine, size, f"flight{len(samples)}")
    return samples


async def _rate(engine: Engine, size: Size) -> float:
    """Returns tokens per second with all requests in flight."""
    started = time.monotonic()
    samples = await _sample(engine, size, "rate")
    return sum(len(sample.ids) for sample in samples) / (time.monotonic() - started)


def used_mib(size: Size) -> float:
    """Returns the memory in use: of the GPU, or the resident memory of the processes below this one."""
    if size.device == "cuda":
        return float(smi("memory.used")[0])
    return sum(child.memory_info().rss for child in psutil.Process().children(recursive=True)) / 2**20


def _version(step: int, digest: str) -> Version:
    return Version(incarnation=1, step=step, digest=digest)
