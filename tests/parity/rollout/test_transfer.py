"""Weights from two ranks into a real engine, over gloo and shared memory in the place of NCCL and CUDA IPC.

Everything else is what GPUs run: snapshot, digest, registry, receiver, inbox, vLLM's hook, swap.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from deploy.selftest.transfer import Sent, trips
from learner.model.probe import folder_canary
from rollout.engine.engine import Engine
from rollout.weights.receiver import GpuReceiver, HostReceiver
from services.records import Version
from services.weights.checksum import MARK
from services.weights.pack import Manifest, unpack
from services.weights.registry import Participant, TransferRegistry

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

HERE = Path(__file__).parent
LONG_S = 240
"""Deadline of a round, longer than any takes on a busy machine."""
END = 1
PROMPT = [int(i) for i in np.random.default_rng(3).integers(2, 500, 50)]


class SendingRanks:
    """The processes of sending_ranks.py, and the registry that they and the receivers share."""

    def __init__(self, way: str, model: Path, folder: Path) -> None:
        # Nobody is ever silent, however slow the machine.
        self.registry, self._folder = TransferRegistry(lambda: 0.0), folder
        served = type("Served", (BaseManager,), {})
        served.register("registry", callable=lambda: self.registry)
        server = served(address=str(folder / "registry"), authkey=b"test").get_server()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._process = self.start("sending_ranks.py", way, model, folder)

    def start(self, script: str, *arguments: object) -> subprocess.Popen[str]:
        """Starts a process that talks in lines."""
        return subprocess.Popen(
            [sys.executable, str(HERE / script), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})

    async def __call__(self, command: str) -> dict:
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = await asyncio.to_thread(self._process.stdout.readline)
        return msgspec.json.decode(line)

    async def sent(self, seconds: float) -> tuple[Version, bool]:
        answer = await self(f"send {seconds}")
        return msgspec.convert(answer["version"], Version), answer["everywhere"]

    async def packed(self, step: int) -> tuple[Manifest, np.ndarray]:
        answer = await self("pack")
        buffer = np.fromfile(self._folder / str(step), dtype=np.uint8)
        return msgspec.convert(answer["manifest"], Manifest), buffer

    async def ask(self, method: str, *arguments):
        return getattr(self.registry, method)(*arguments)

    async def fetch(self, *_) -> None:
        """Nothing comes through host memory."""

    def close(self) -> None:
        self._process.stdin.close()
        assert self._process.wait(240) == 0


@asynccontextmanager
async def started(way: str, model: Path, folder: Path, engine: Engine):
    """Starts a rank group, and the receiver of an engine on its first GPU."""
    rank_group = SendingRanks(way, model, folder)
    host = HostReceiver(engine, rank_group.fetch, seconds=LONG_S)
    receiver = GpuReceiver(engine, host, Participant(worker="one"), rank_group.ask, address="127.0.0.1")
    task = asyncio.create_task(receiver.run())
    while not rank_group.registry.members():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield rank_group, receiver
        await asyncio.to_thread(rank_group.close)
    finally:
        task.cancel()
        await asyncio.wait([task])
        rank_group._process.kill()


async def sample(engine: Engine, seed: int):
    """Samples alone, so that the last bits depend on the weights only."""
    return await engine.sample(PROMPT, temperature=1.0, seed=seed, max_tokens=24, stop_token_ids=[END],
                               request_id=f"transfer/{seed}/{engine.version.short}")


async def flow(engine: Engine, end: asyncio.Event) -> list:
    """Samples one long answer after another until `end` is set. A few of many seeds draw END before the last token."""
    found = []
    while not end.is_set():
        found.append(await engine.sample(PROMPT, temperature=1.0, seed=len(found), max_tokens=120, stop_token_ids=[END],
                                         request_id=f"flow/{len(found)}/{engine.version.short}"))
    return found


def logprobs(make, tensors, found) -> np.ndarray:
    """Returns the logprobs of the sampled tokens by one forward pass of Hugging Face's model."""
    model = make(tied=True, seed=0)
    model.load_state_dict(tensors)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *map(int, found.ids)]])).logits[0, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(found.ids)), torch.from_numpy(found.ids).long()].numpy()


async def check_same(engine: Engine, rank_group: SendingRanks, version: Version, make) -> None:
    """The engine answers to the bit as with the learner's weights from host memory, and as the learner computes."""
    by_transfer = await sample(engine, 7)
    manifest, buffer = await rank_group.packed(version.step)
    await engine.update(msgspec.structs.replace(version, incarnation=2), manifest, buffer)
    by_host = await sample(engine, 7)
    assert [span.version for span in by_transfer.spans] == [version]
    assert by_transfer.ids.tolist() == by_host.ids.tolist()
    assert by_transfer.logprobs.tobytes() == by_host.logprobs.tobytes()
    assert np.abs(logprobs(make, unpack(manifest, buffer), by_host) - by_host.logprobs).max() < 1e-4


async def swapped(receiver: GpuReceiver, version: Version) -> None:
    assert await receiver.receive(msgspec.structs.replace(version, step=77), "") is None, "another version"
    assert await receiver.receive(version, "") is not None


@pytest.mark.parametrize("way", ["nccl", "ipc"])
async def test_each_rank_sends_what_it_has_while_requests_go_on_and_the_engine_equals_the_learner(
        way, sampler: Engine, tied_folder, tiny_model, tmp_path):
    end = asyncio.Event()
    async with started(way, tied_folder, tmp_path, sampler) as (rank_group, receiver):
        for step in (1, 2):
            await rank_group("train")
            end.clear()
            running = asyncio.create_task(flow(sampler, end))
            version, everywhere = await rank_group.sent(LONG_S)
            assert everywhere
            assert (version.step, version.digest[: len(MARK)]) == (step, MARK)
            while not sampler.kv_used and not running.done():  # noqa: ASYNC110 - vLLM's process changes it
                await asyncio.sleep(0.005)
            await swapped(receiver, version)
            end.set()
            answers = await running
            assert answers, "no answer was in flight"
            assert all(len(answer.ids) == 120 or answer.ids[-1] == END for answer in answers)
            assert answers[-1].spans[-1].version == version
            await check_same(sampler, rank_group, version, tiny_model)


class ParallelEngine(Engine):
    """An engine of two processes with half of each layer. rollout.tensor_parallel is for GPUs alone."""

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


@pytest.mark.long
async def test_the_processes_of_a_parallel_engine_keep_a_part_each_and_gather_whole_tensors_in_the_swap(
        sampler_config, tied_folder, tiny_model, tmp_path):
    model = tiny_model(tied=True, seed=1)
    model.save_pretrained(tmp_path)
    engine = ParallelEngine(tied_folder, Version(incarnation=0, step=0), config=sampler_config, dtype="float32")
    try:
        await engine.start()
        sent = Sent(model=tmp_path, canary=folder_canary(tmp_path, half=False))
        await trips(engine, sent, "float32", "nccl", rounds=1, incarnation=1, processes=2)
        found = await sample(engine, 7)
    finally:
        await engine.close()
    assert [span.version.incarnation for span in found.spans] == [1]
    assert np.abs(logprobs(tiny_model, model.state_dict(), found) - found.logprobs).max() < 1e-4


async def test_a_worker_that_stops_in_a_round_ends_it_before_its_deadline_and_takes_part_again(
        sampler: Engine, tied_folder, tmp_path):
    """It is stopped, so that its links stay open: NCCL does not tell a dead process from one that is silent.

    The deadline is longer than the test may take. The registry is told of the silence that it would notice in 10 s.
    The other worker may have the version all the same.
    """
    async with started("nccl", tied_folder, tmp_path, sampler) as (rank_group, receiver):
        with rank_group.start("receiving_process.py", "two", tmp_path, "stops") as stopped:
            try:
                await two_members(rank_group)
                await rank_group("train")
                sending = asyncio.create_task(rank_group.sent(3600))
                assert await asyncio.to_thread(stopped.stdout.readline) == "connected\n"
                stopped.send_signal(signal.SIGSTOP)
                rank_group.registry.leave("two")
                version, everywhere = await sending
            finally:
                stopped.kill()
        assert not everywhere
        if await receiver.receive(version, "") is None:
            await sampler.update(version, *await rank_group.packed(1))
        assert (await sample(sampler, 7)).spans[-1].version == version

        with rank_group.start("receiving_process.py", "two", tmp_path) as back:
            try:
                await two_members(rank_group)
                await rank_group("train")
                version, everywhere = await rank_group.sent(LONG_S)
                assert everywhere
                assert await asyncio.to_thread(back.stdout.readline) == f"{version.digest}\n"
                await swapped(receiver, version)
            finally:
                back.kill()
        assert (await sample(sampler, 8)).spans[-1].version == version


async def two_members(rank_group: SendingRanks) -> None:
    while len(rank_group.registry.members()) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
