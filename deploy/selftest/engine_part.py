"""The engine's part of the self-test: it starts next to memory that another process holds, decodes, and takes updates.

A step that raises becomes a line with its reason, and the steps after it show what still works. On a CPU no speed is
judged: there the same code shows that the test itself works.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from deploy.launch.planning.gpu_pool import smi
from deploy.selftest.sizes import SEED, Size, held_memory, make_model, used_mib
from deploy.selftest.transfer import Sent, Trip, trips
from learner.model.probe import folder_canary
from learner.selftest.table import Line, attempt
from rollout.engine.engine import Engine, Sample
from services.errors import WrongWeights
from services.process.env_variables import env_variable
from services.records import Version
from services.weights.headers import folder_parameters
from services.weights.pack import ITEM_SIZES, pack_folder
from services.weights.registry import Way

UPDATES = 5
GROWTH_MIB = 256
"""Memory in MiB that may be added between the first update and the last."""
FREED = 0.9
"""Share of its weights and KV cache that a sleeping sampler must free."""
PAUSE_S = 2.0
"""Longest pause of an update of 1.5B parameters on a GPU."""
SEND_S = 5.0
"""Longest time of a transfer of 1.5B parameters from GPU to GPU, during requests."""
SENT = 3
"""Number of times that each model is sent."""
WAYS: dict[Way, tuple[str, int]] = {"ipc": ("weights by CUDA IPC", 0), "nccl": ("weights by NCCL", 1)}
"""Name of each way, and number of the GPU that sends: NCCL refuses two processes on one."""
PARALLEL = "weights by NCCL to two GPUs"
FIRST_TOKENS = 24
"""Tokens of an answer that are compared with those of another round."""
REPEATED = 0.5
"""Share of the answers that must repeat these tokens."""
TIMES = {"weights": r"Model loading took .* ([\d.]+) seconds", "torch.compile": r"torch\.compile took ([\d.]+) s",
         "CUDA graphs": r"Graph capturing finished in (\d+) secs",
         "these and the KV cache": r"init engine \(profile.* took ([\d.]+) s"}
"""Patterns of vLLM's log lines, at the level INFO, with the seconds of the parts of its start."""
Run = Callable[[Coroutine[Any, Any, list[Line]]], list[Line]]


class TrialEngine(Engine):
    """An engine whose output can be read."""

    def output(self) -> str:
        """Returns the end of what vLLM has printed."""
        return "" if self._output is None else self._output.text()


class EagerEngine(Engine):
    """The same engine without CUDA graphs."""

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"enforce_eager": True}


def engine_part(size: Size, model: Path, report: Callable[[str], object]) -> Iterator[Line]:
    """Yields the lines of the engine's part as they are measured. `model`: a folder of sizes.make_model."""
    trial = _Trial(size, model)
    with held_memory(size.held_gib):
        yield from _steps(trial, report)
    report("an engine over two GPUs")
    yield from attempt(PARALLEL, lambda: _parallel(trial))
    report("the engine without graphs")
    yield from attempt("graphs against eager", lambda: [_against_eager(size, model, trial.rate)])


def _steps(trial: _Trial, report: Callable[[str], object]) -> Iterator[Line]:
    size = trial.size
    engine = TrialEngine(trial.model, _version(0, ""), config=size.rollout, dtype=size.dtype)
    with _in_one_loop(engine) as run:
        for name, step in (
            ("engine starts on a shared GPU", trial.start), ("seeds repeat", trial.repeat),
            ("tokens a second", trial.measure), ("updates", trial.update),
            *((name, partial(trial.transfer, way=way)) for way, (name, _) in WAYS.items()),
            ("memory of a sampler that sleeps", trial.sleep),
        ):
            report(name)
            yield from attempt(name, lambda step=step: run(step(engine)))


@contextmanager
def _in_one_loop(engine: Engine) -> Iterator[Run]:
    """Yields a function that runs a coroutine on this engine's loop. Closes the engine at the end."""
    with asyncio.Runner() as runner:
        try:
            yield runner.run
        finally:
            runner.run(engine.close())


def times(output: str) -> str:
    """Returns the seconds of each part of a start that vLLM has logged, in one line."""
    matches = {name: re.findall(pattern, output) for name, pattern in TIMES.items()}
    return ", ".join(f"{name} {float(seconds[-1]):.3g}" for name, seconds in matches.items() if seconds)


def _against_eager(size: Size, model: Path, graphs: float) -> Line:
    eager = _Trial(size, model)
    engine = EagerEngine(model, _version(0, ""), config=size.rollout, dtype=size.dtype)

    async def measured() -> list[Line]:
        await engine.start()
        await _sample(engine, size, "warm")
        return await eager.measure(engine)

    with _in_one_loop(engine) as run:
        run(measured())
    return Line(name="graphs against eager", passed=graphs > (0.0 if size.device == "cpu" else eager.rate),
                value=f"{graphs:,.0f} tokens/s, {graphs / eager.rate:.2f} times eager mode")


def _parallel(trial: _Trial) -> list[Line]:
    """Sends two models to an engine over two GPUs, each of which keeps its half until the swap."""
    size, model = trial.size, trial.model
    if size.device == "cpu" or len(smi("index")) < 3:
        return [Line(name=PARALLEL, value="needs three GPUs")]
    rollout = size.rollout.model_copy(update={"gpus": 1.0, "tensor_parallel": 2, "sleep": False})
    engine = Engine(model, _version(0, ""), config=rollout, dtype=size.dtype)

    async def sent() -> list[Line]:
        await engine.start()
        before = await _sample(engine, size, "by host")
        measured = await _trips(engine, trial.two, size, "nccl", incarnation=2, gpu=2, processes=2)
        return [arrival(PARALLEL, measured, size),
                repeated(f"answers after {PARALLEL}", before, await _sample(engine, size, "nccl"))]

    with _in_one_loop(engine) as run:
        return run(sent())


class _Trial:
    """The steps of one engine from its start to its end. Each returns its lines."""

    def __init__(self, size: Size, model: Path) -> None:
        self.size, self.model = size, model
        self.rate = 0.0
        """Tokens per second with all requests in flight."""

    @cached_property
    def two(self) -> list[Sent]:
        """Another model of random weights, and this one: an engine that keeps old weights is noticed."""
        other = make_model(self.size, self.model.parent / "other", seed=SEED + 1)
        return [Sent(model=folder, canary=folder_canary(folder, half=self.size.dtype == "bfloat16"))
                for folder in (other, self.model)]

    async def start(self, engine: TrialEngine) -> list[Line]:
        started = time.monotonic()
        with env_variable("VLLM_LOGGING_LEVEL", "INFO"):
            await engine.start()
        figure = f"{time.monotonic() - started:.0f} s next to {self.size.held_gib:g} GiB of another process"
        return [Line(name="engine starts on a shared GPU", value=figure, passed=True),
                Line(name="seconds of the start, by vLLM's log", value=times(engine.output()))]

    async def repeat(self, engine: Engine) -> list[Line]:
        one, two = await _sample(engine, self.size, "one"), await _sample(engine, self.size, "two")
        return [repeated("seeds repeat", one, two)]

    async def measure(self, engine: Engine) -> list[Line]:
        started = time.monotonic()
        samples = await _sample(engine, self.size, "rate")
        self.rate = sum(len(sample.ids) for sample in samples) / (time.monotonic() - started)
        return [Line(name="tokens a second", value=f"{self.rate:,.0f} with {self.size.requests} requests")]

    async def update(self, engine: Engine) -> list[Line]:
        two = await asyncio.to_thread(lambda: self.two)
        packed = [await asyncio.to_thread(pack_folder, sent.model, self.size.dtype) for sent in two]
        landed = asyncio.Event()
        flying = asyncio.create_task(_sample_until(landed, engine, self.size))
        seconds, memory = [], []
        try:
            for step in range(1, UPDATES + 1):
                await asyncio.sleep(0.2)
                one = step % 2  # the last one is the model with which the engine has started
                await engine.update(_version(step, packed[one].digest), packed[one].manifest, packed[one].buffer,
                                    two[one].canary)
                seconds.append(engine.paused_seconds)
                memory.append(used_mib(self.size))
        finally:
            landed.set()  # also after a fault: the requests would load the engine in all later steps
            samples = await flying
        split = sum(len(sample.spans) > 1 for sample in samples)
        complete = all(sample.finished == "stop" or len(sample.ids) == self.size.tokens for sample in samples)
        grown = memory[-1] - memory[0]
        return [
            Line(name="update in flight", passed=complete and split > 0,
                 value=f"{split} of {len(samples)} answers have tokens of several versions"),
            Line(name="pause of an update", aim=f"under {PAUSE_S:g} s",
                 value=f"{max(seconds):.2f} s, {packed[0].buffer.nbytes / max(seconds) / 1e9:.2f} GB/s",
                 passed=self.size.device == "cpu" or max(seconds) < PAUSE_S),
            Line(name="five updates, flat memory", value=f"{grown:+,.0f} MiB",
                 aim=f"under {GROWTH_MIB} MiB", passed=grown < GROWTH_MIB)]

    async def transfer(self, engine: Engine, way: Way) -> list[Line]:
        """Sends another model by this way, and then the first one again, so that the answers stay."""
        name, sender = WAYS[way]
        before = await _sample(engine, self.size, f"before {way}")
        if self.size.device == "cuda" and len(smi("index")) <= sender:
            return [Line(name=name, value="needs two GPUs")]
        two = await asyncio.to_thread(lambda: self.two)
        try:
            measured = await _trips(engine, two, self.size, way, incarnation=2 + sender, gpu=sender)
        except WrongWeights as fault:
            return [Line(name=name, passed=False, value=str(fault), aim="what Hugging Face computes")]
        return [arrival(name, measured, self.size),
                repeated(f"answers after {name}", before, await _sample(engine, self.size, way))]

    async def sleep(self, engine: Engine) -> list[Line]:
        """Lets the engine sleep with requests in flight, which continue when it wakes up."""
        rollout, before = self.size.rollout, await _sample(engine, self.size, "before")
        flying = asyncio.create_task(_sample(engine, self.size, "dreams"))
        while not engine.kv_used and not flying.done():  # noqa: ASYNC110 - there is no event of the first step
            await asyncio.sleep(0.001)
        awake, started = used_mib(self.size), time.monotonic()
        await engine.sleep()
        asleep, slept = used_mib(self.size), time.monotonic() - started
        started = time.monotonic()
        await engine.wake()
        again, woken = used_mib(self.size), time.monotonic() - started
        weights = folder_parameters(self.model) * ITEM_SIZES[self.size.dtype] / 2**20
        planned = weights + 1024 * rollout.kv_cache_gb
        return [
            Line(name="memory of a sampler that sleeps", aim=f"{planned:,.0f} MiB given, and taken again",
                 value=f"{awake:,.0f} MiB awake, {asleep:,.0f} in {slept:.2f} s, {again:,.0f} in {woken:.2f} s",
                 passed=self.size.device == "cpu" or (awake - asleep > FREED * planned and again - awake < GROWTH_MIB)),
            repeated("answers continue after a sleep", before, await flying)]


async def _trips(engine: Engine, models: Sequence[Sent], size: Size, way: Way, *, incarnation: int, gpu: int,
                 processes: int = 1) -> list[Trip]:
    """Sends each model SENT times during requests. `gpu`: number of the GPU that sends, if there are any.

    Of later models the first trip is left out, because it makes the links anew. Raises WrongWeights unless the engine
    computes what Hugging Face computes with each model.
    """
    landed = asyncio.Event()
    flying = asyncio.create_task(_sample_until(landed, engine, size))
    try:
        rounds = [await trips(engine, sent, size.dtype, way, rounds=SENT, incarnation=10 * incarnation + number,
                             gpu=gpu if size.device == "cuda" else None, processes=processes)
                 for number, sent in enumerate(models)]
        return [trip for model in rounds for trip in (model if model is rounds[0] else model[1:])]
    except WrongWeights:
        packed = await asyncio.to_thread(pack_folder, models[-1].model, size.dtype)
        version = Version(incarnation=10 * incarnation, step=SENT, digest=packed.digest)
        await engine.update(version, packed.manifest, packed.buffer)  # unchecked, so that the engine answers again
        raise
    finally:
        landed.set()
        await flying


def arrival(name: str, trips: list[Trip], size: Size) -> Line:
    """Returns the line of the slowest trip and the longest pause. The first trip also makes the links, so
    its time is not judged."""
    slowest, pause = max(trips[1:], key=lambda trip: trip.sending), max(trip.pause for trip in trips)
    return Line(
        name=name, aim=f"under {SEND_S:g} s, and a pause under {PAUSE_S:g} s",
        value=f"{slowest.sending:.2f} s, {slowest.size / slowest.sending / 1e9:.2f} GB/s, pause {pause:.2f} s",
        passed=size.device == "cpu" or (slowest.sending < SEND_S and pause < PAUSE_S))


def repeated(name: str, one: list[Sample], two: list[Sample]) -> Line:
    """Returns the line of two rounds of answers to the same seeds.

    In bfloat16 sums in another order move the logits of a model of random weights by 0.013 nats, which turns a near tie
    at T = 1 in about one token of 130. After that an answer goes its own way, so nearly all answers of 256 tokens may
    differ somewhere. Other seeds or other weights draw other tokens from the beginning.
    """
    same = sum(bool(np.array_equal(a.ids[:FIRST_TOKENS], b.ids[:FIRST_TOKENS])) for a, b in zip(one, two, strict=True))
    return Line(name=name, value=f"{same} of {len(one)} answers repeat their first {FIRST_TOKENS} tokens",
                aim=f">= {100 * REPEATED:.0f}%", passed=same >= REPEATED * len(one))


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


def _version(step: int, digest: str) -> Version:
    return Version(incarnation=1, step=step, digest=digest)
