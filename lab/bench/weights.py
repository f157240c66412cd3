"""A version of the weights on its way from the learner into a rollout worker's engine, part by part.

The parts are those of a run: packed with a digest by the learner, owned by the weights actor, fetched by a worker,
checked while requests go on, and swapped while they pause. Then the ways from GPU to GPU, with their stand-ins on CPUs.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.selftest.transfer import Sent, Trip, trips
from lab.bench.figures import Figure, Report, silent
from services.config.sections import RolloutSection
from services.records import Version
from services.weights.registry import Way

HIDDEN, LAYERS, VOCABULARY = 1024, 8, 8192
ROLLOUT = RolloutSection(slots=8, max_prompt_tokens=128, max_response_tokens=64, kv_cache_gb=0.25, threads=2)
ROUNDS = 3
"""The best of so many is taken."""
PARTS = 4
WAYS: dict[str, Way] = {"by gloo for NCCL": "nccl", "by shared memory for CUDA IPC": "ipc"}


def run(report: Report = silent) -> list[Figure]:
    """Returns bytes per second of each part and the pause, for 126 million float32 numbers."""
    with tempfile.TemporaryDirectory(prefix="gagpo-bench-") as folder:
        report("a model", 0, PARTS)
        model = _model(Path(folder))
        report("packing", 1, PARTS)
        packed, packing = _best(lambda: _pack(model))
        report("the weights actor", 2, PARTS)
        carried = _carry(packed)
        report("the engine", 3, PARTS)
        checking, pause, sent = asyncio.run(_update(Path(folder), packed))
        shared = _shared(packed)
    size = packed.buffer.nbytes
    return [
        Figure(name="size of a version", value=size / 1e6, unit="MB"),
        *(Figure(name=name, value=size / seconds / 1e9, unit="GB/s") for name, seconds in (
            ("pack and digest", packing), *carried, ("check and write, requests go on", checking))),
        Figure(name="the same for a second worker of the machine", value=1e3 * shared, unit="ms"),
        Figure(name="pause of the requests", value=1e3 * pause, unit="ms"),
        Figure(name="swap during the pause", value=size / pause / 1e9, unit="GB/s"),
        *(figure for name, trip in sent.items() for figure in (
            Figure(name=f"{name}: all that requests go on beside", value=size / trip.sending / 1e9, unit="GB/s"),
            Figure(name=f"{name}: pause of the requests", value=1e3 * trip.pause, unit="ms"))),
    ]


def _model(folder: Path) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512, tie_word_embeddings=True))
    model.save_pretrained(folder)
    return model


def _best(call: Any) -> tuple[Any, float]:
    """Returns the last result, and the shortest time."""
    shortest, result = float("inf"), None
    for _ in range(ROUNDS):
        started = time.monotonic()
        result = call()
        shortest = min(shortest, time.monotonic() - started)
    return result, shortest


def _pack(model: Any) -> Any:
    from services.weights.pack import pack_tensors

    return pack_tensors(model.state_dict().items())


def _carry(packed: Any) -> list[tuple[str, float]]:
    from deploy.launch.ray_cluster import private_ray

    with private_ray(log_to_driver=False, configure_logging=False):
        import ray

        from services.weights.actor import WeightsActor

        try:
            actor: Any = WeightsActor.remote()
            version = Version(incarnation=0, step=0, digest=packed.digest)
            _, publishing = _best(lambda: ray.get(actor.publish.remote(version, packed.manifest, packed.buffer)))
            fetched: Any = ray.get(actor.fetch.remote(version))
            _, fetching = _best(lambda: ray.get(fetched.refs[0]))
        finally:
            ray.shutdown()
    return [("publish to the weights actor", publishing), ("fetch, mapped", fetching)]


def _shared(packed: Any) -> float:
    """Returns the seconds after which a second worker has the file that a first one uses."""
    from rollout.engine.weights_file import weights_file

    def open_it() -> None:
        with weights_file(packed.manifest, packed.buffer, packed.digest):
            pass

    with weights_file(packed.manifest, packed.buffer, packed.digest):
        return _best(open_it)[1]


async def _update(folder: Path, packed: Any) -> tuple[float, float, dict[str, Trip]]:
    """Returns the seconds of an update before its pause, those of the pause, and the best trip of each way."""
    from rollout.engine.engine import Engine

    engine = Engine(folder, Version(incarnation=0, step=0), config=ROLLOUT, dtype="float32", load=False)
    before, pauses = [], []
    try:
        await engine.start()
        for step in range(1, ROUNDS + 1):
            started = time.monotonic()
            await engine.update(Version(incarnation=1, step=step, digest=packed.digest), packed.manifest, packed.buffer)
            before.append(time.monotonic() - started - engine.paused_seconds)
            pauses.append(engine.paused_seconds)
        model = Sent(model=folder)
        sent = {name: min(await trips(engine, model, "float32", way, rounds=ROUNDS, incarnation=2 + number),
                          key=lambda trip: trip.sending)
                for number, (name, way) in enumerate(WAYS.items())}
    finally:
        await engine.close()
    return min(before), min(pauses), sent
