"""`gagpo selftest` on a CPU: the same code at a tiny size, with real vLLM, Ray and Redis."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy import cli
from deploy.commands import selftest
from deploy.launch.planning import gpu_pool
from deploy.selftest.engine_part import PARALLEL
from deploy.selftest.sizes import CPU

pytestmark = pytest.mark.vllm


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(gpu_pool, "smi", lambda field: [])
    assert cli.main(["selftest", "--gpu"]) == 2
    assert capsys.readouterr().err.strip().splitlines() == [
        "error: the self-test needs an NVIDIA GPU, and this machine has none; "
        "run it on a machine whose `nvidia-smi` lists a GPU"]


@pytest.mark.long
def test_its_parts_pass_at_a_tiny_size(tmp_path: Path):
    told: list[str] = []
    lines = list(selftest.run_parts(("engine", "loop"), CPU, tmp_path, told.append))
    told_by_vllm = next(line for line in lines if line.name == "seconds of the start, by vLLM's log")
    assert re.fullmatch(r"these and the KV cache [\d.]+", told_by_vllm.value)
    rate = next(line for line in lines if line.name == "tokens a second")
    assert re.fullmatch(r"[\d,]+ with 8 requests", rate.value)
    assert [(line.name, line.value) for line in lines if not line.passed and line not in (told_by_vllm, rate)] == [
        (PARALLEL, "needs three GPUs"), ("versions by CUDA IPC in a run", "0 sent, 0 failed")]
    assert [line.name for line in lines if line.passed] == [
        "engine starts on a shared GPU", "seeds repeat", "update in flight", "pause of an update",
        "five updates, flat memory", "weights by CUDA IPC", "answers after weights by CUDA IPC", "weights by NCCL",
        "answers after weights by NCCL", "memory of a sampler that sleeps", "answers continue after a sleep",
        "graphs against eager", "whole loop", "continues after its end",
        "no GPU process left"]
    assert told
