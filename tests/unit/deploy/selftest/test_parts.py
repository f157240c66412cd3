"""The self-test of a GPU: each line fails if its claim is wrong, and a fault in one step leaves the other lines."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from deploy import cli
from deploy.commands import selftest
from deploy.launch.planning.gpu_pool import GpuPool
from deploy.selftest import engine_part as engine_part_module
from deploy.selftest import loop_part, transfer
from deploy.selftest.engine_part import FIRST_TOKENS, arrival, engine_part, repeated, times
from deploy.selftest.sizes import CPU, GPU, held_memory, used_mib
from deploy.selftest.transfer import Sent, Trip
from learner.selftest.table import Line
from rollout.engine.engine import Sample
from services.errors import EngineFault
from services.records import Version
from services.weights.registry import TransferRegistry


def answers(same: list[int]) -> list[Sample]:
    """Answers of 256 tokens. The first `same[k]` tokens of answer k are 0, the others 1."""
    return [Sample(ids=np.array([0] * count + [1] * (256 - count), dtype=np.int32),
                   logprobs=np.zeros(256, dtype=np.float32), spans=[], finished="length") for count in same]


def test_answers_that_rounding_parts_late_count_as_repeated():
    """One token in 130 turns in bfloat16: of 64 answers about 9 are the same to the end, and 53 for 24 tokens."""
    parted = np.random.default_rng(0).geometric(1 / 130, 64).clip(max=256)
    assert (parted == 256).mean() < 0.2
    assert repeated("seeds repeat", answers([256] * 64), answers(list(parted))).passed


def test_answers_that_differ_from_the_beginning_do_not():
    one = answers([256] * 8)
    line = repeated("seeds repeat", one, answers([0, 1, 3, 5, FIRST_TOKENS - 1, 24, 30, 256]))
    assert (line.passed, line.value) == (False, "3 of 8 answers repeat their first 24 tokens")
    assert repeated("seeds repeat", one, answers([0, 1, 3, 5, 24, 24, 30, 256])).passed


def test_an_engine_that_does_not_start_is_a_failed_line_and_so_is_each_step_after_it(tmp_path: Path):
    """It was an exception, which lost the lines before it and the parts after it."""
    (tmp_path / "model.safetensors").write_bytes(b"no header")  # is read before vLLM's process starts
    lines = {line.name: line for line in engine_part(CPU, tmp_path, lambda _: None)}
    assert lines["engine starts on a shared GPU"].value.startswith("Damaged: ")
    for name in ("engine starts on a shared GPU", "seeds repeat", "updates", "weights by CUDA IPC", "weights by NCCL",
                 "memory of a sampler that sleeps", "graphs against eager"):
        assert lines[name].passed is False, name


async def test_requests_in_flight_end_with_the_update_that_fails(monkeypatch: pytest.MonkeyPatch):
    """They would load the engine in the steps after it."""
    class Broken:
        async def sample(self, prompt: list[int], **_: object) -> Sample:
            await asyncio.sleep(0.01)
            return answers([1])[0]

        async def update(self, *_: object) -> None:
            raise EngineFault("update: no room")

    packed = SimpleNamespace(digest="d", manifest=None, buffer=np.zeros(1))
    monkeypatch.setattr(engine_part_module, "pack_folder", lambda *_: packed)
    trial = engine_part_module._Trial(CPU, Path("model"))
    trial.two = [Sent(model=Path("other")), Sent(model=Path("model"))]
    with pytest.raises(EngineFault, match="no room"):
        await trial.update(cast("Any", Broken()))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_engine_that_does_not_join_the_transfers_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    """The self-test waited for it without an end."""
    monkeypatch.setattr(transfer, "SECONDS", 0.05)
    ranks = SimpleNamespace(pack=lambda: SimpleNamespace(buffer=np.zeros(1)))
    source: Any = SimpleNamespace(sender=lambda: ranks, way="nccl")
    with pytest.raises(EngineFault, match="did not join the transfers within"):
        await asyncio.wait_for(
            transfer._sent(TransferRegistry(), source, cast("Any", None), [Version(incarnation=1, step=0)], None), 5.0)


def test_memory_that_stays_in_use_after_a_run_is_found_without_a_list_of_processes(monkeypatch: pytest.MonkeyPatch):
    """As in a container, where nvidia-smi lists none. On a CPU the memory is that of the processes below this one."""
    monkeypatch.setattr(loop_part, "END_S", 0.0)
    before = used_mib(CPU)
    assert loop_part._left(CPU, set(), before).passed
    holder = subprocess.Popen([sys.executable, "-c", "import sys; held = b'1' * 2**29; print('held', flush=True); "
                               "sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    left = loop_part._left(CPU, set(), before)
    holder.communicate()
    assert left.passed is False
    assert left.value.startswith("0 left, +5")


def test_a_slow_trip_and_a_long_pause_are_seen_among_fast_ones():
    """The fastest of three was shown, and passed."""
    def passed(*seconds: tuple[float, float]) -> bool | None:
        trips = [Trip(size=3 * 10**9, sending=sending, pause=pause) for sending, pause in seconds]
        return arrival("weights by CUDA IPC", trips, GPU).passed

    assert passed((30, 1), (4, 1), (3, 1))  # the first one makes the links
    assert passed((4, 1), (3, 1), (6, 1)) is False
    assert passed((4, 3), (3, 1), (3, 1)) is False


@pytest.mark.parametrize(("events", "passed"), [
    (["transferred"] * 3, True), (["transferred", "transfer failed"], False), (["started"], False)])
def test_a_run_whose_versions_went_through_host_memory_is_found(tmp_path: Path, events: list[str], passed: bool):
    """Its steps are taken all the same."""
    (tmp_path / "log.jsonl").write_text("".join(f'{{"event": "{event}"}}\n' for event in events))
    assert loop_part.by_ipc(GPU, tmp_path / "log.jsonl").passed is passed


def test_a_gpu_that_has_no_room_for_the_other_process_is_told():
    with pytest.raises(RuntimeError, match="could not take 15 GiB"), held_memory(15):
        pass


def test_lines_are_printed_as_they_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def parts(*_: object) -> Iterator[Line]:
        yield Line(name="first", value="1", passed=True)
        assert capsys.readouterr().out.split() == ["pass", "first", "1"]
        yield Line(name="second", value="2", passed=False)

    monkeypatch.setattr(selftest, "visible", lambda: GpuPool(1, 80 * 10**9))
    monkeypatch.setattr(selftest, "run_parts", parts)
    assert cli.main(["selftest", "--gpu"]) == 1
    assert capsys.readouterr().out.split() == ["FAIL", "second", "2"]


def test_the_parts_of_a_start_are_read_from_what_vllm_tells():
    told = "\n".join((
        "INFO [model_runner.py:425] Model loading took 2.8876 GiB memory and 1.254321 seconds",
        "INFO [monitor.py:60] torch.compile took 21.37 s in total",
        "INFO [model_runner.py:1128] Graph capturing finished in 7 secs, took 0.41 GiB",
        "INFO [core.py:403] init engine (profile, create kv cache, warmup model) took 41.20 s (compilation: 21.37 s)"))
    assert times(told) == "weights 1.25, torch.compile 21.4, CUDA graphs 7, these and the KV cache 41.2"
    assert times("nothing of this") == ""
