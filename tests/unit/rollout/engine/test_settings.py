"""How vLLM is started on a CPU and on a GPU, held against vLLM's own list of arguments."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rollout.engine import engine as engine_module
from rollout.engine.engine import Engine
from rollout.engine.settings import engine_arguments, engine_environment, environment, kv_bytes
from services.amounts import GIB
from services.config.sections import COLDEST, RolloutSection
from services.errors import UserError
from services.records import Version


def arguments(**keys: Any) -> dict[str, Any]:
    return engine_arguments(Path("model"), RolloutSection(**keys), dtype="bfloat16", seed=3, kv_bytes=GIB, load=False)


def test_the_guards_for_cpu_faults_hold_on_the_cpu_alone():
    cpu, cuda = arguments(), arguments(gpus=1)
    assert (cpu["enforce_eager"], cuda["enforce_eager"]) == (True, False)
    assert (cpu["enable_chunked_prefill"], cuda["enable_chunked_prefill"]) == (False, True)
    assert cuda["max_num_batched_tokens"] >= 16384
    assert cuda["enable_prefix_caching"]
    assert "block_size" not in cuda  # vLLM takes the one that its attention kernel needs
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "TORCHDYNAMO_DISABLE", "VLLM_CPU_OMP_THREADS_BIND"):
        assert name in environment(RolloutSection())
        assert name not in environment(RolloutSection(gpus=1))


def test_float32_keeps_its_precision_in_triton_on_a_gpu():
    """vLLM's attention in float32 is Triton's there (only TRITON_ATTN of cuda.py's list takes float32 and is fast), and
    Triton's dot rounds its inputs to 10 bits by default. A tiny model's logprobs then differ by 3e-4 nats from the
    learner's, of which float32 explains 6e-6."""
    assert environment(RolloutSection(gpus=1))["TRITON_F32_DEFAULT"] == "ieee"


def test_a_gpu_is_asked_for_its_memory_only_if_the_cache_is_a_share_of_it():
    """The question imports vLLM into the worker, and NVML has no answer for a part of a GPU (MIG)."""
    program = ("import sys; from rollout.engine.settings import gpu_bytes, RolloutSection as Section; "
               "sizes = [gpu_bytes(Section(gpus=1, gpu_memory=memory)) for memory in (None, 20.0)]; "
               "print(sizes, 'vllm' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", program],
                          capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[0, 0] False\n"


def test_the_engine_reads_the_files_that_the_learner_reads():
    """By itself vLLM reads Mistral's own config and weights (params.json, consolidated.safetensors) if it can."""
    loaded = engine_arguments(Path("model"), RolloutSection(), dtype="bfloat16", seed=3, kv_bytes=GIB)
    assert (loaded["config_format"], loaded["load_format"]) == ("hf", "hf")


def test_a_gpu_batch_holds_the_longest_row():
    assert arguments(gpus=1, max_prompt_tokens=30_000)["max_num_batched_tokens"] == 30_512
    assert arguments(max_prompt_tokens=6_000)["max_num_batched_tokens"] == 6_512


def test_a_gpu_that_is_shared_need_not_be_free():
    """vLLM refuses to start unless gpu_memory_utilization of the GPU is free, whatever the KV cache is given."""
    assert arguments(gpus=0.5)["gpu_memory_utilization"] <= 0.1


def test_an_engine_over_several_gpus_is_told_so():
    section = RolloutSection(gpus=1, tensor_parallel=4)
    assert arguments(gpus=1, tensor_parallel=4)["tensor_parallel_size"] == 4
    assert section.reserved_gpus == 4


@pytest.mark.parametrize("keys", [{}, {"gpus": 1}, {"gpus": 1, "tensor_parallel": 2}, {"gpus": 0.5, "gpu_memory": 30}])
def test_vllm_knows_every_argument(keys: dict[str, Any]):
    from vllm.engine.arg_utils import AsyncEngineArgs

    made = arguments(**keys)
    assert made.keys() <= {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    args = AsyncEngineArgs(**made, trust_remote_code=False)
    assert (args.load_format, args.kv_cache_memory_bytes) == ("dummy", GIB)
    assert args.logprobs_mode == "processed_logprobs"


def test_the_lowest_temperature_of_a_config_is_the_lowest_that_vllm_samples_at():
    """The learner's logprobs and the tables of evaluations are of the temperature in the config."""
    from vllm.sampling_params import SamplingParams

    assert SamplingParams(temperature=COLDEST).temperature == COLDEST
    assert SamplingParams(temperature=COLDEST / 2).temperature == COLDEST


@pytest.mark.parametrize(("keys", "expected"), [
    ({"kv_cache_gb": 24}, 24), ({"gpu_memory": 40}, 40 - 3 - 4), ({"gpu_memory": 0.5}, 40 - 3 - 4),
    ({"gpu_memory": 40, "tensor_parallel": 3}, 40 - 1 - 4)])
def test_the_kv_cache_gets_what_the_weights_leave(keys: dict[str, Any], expected: float):
    """3 GiB of weights on GPUs of 80 GiB; vLLM itself takes 4."""
    section = RolloutSection(gpus=1, **keys)
    assert kv_bytes(section, weight_bytes=3 * GIB, gpu_bytes=80 * GIB) == expected * GIB


def test_a_share_without_room_for_a_cache_is_refused():
    with pytest.raises(UserError, match=r"rollout.gpu_memory=16 leaves -3.0 GiB for the KV cache next to 15.0 GiB"):
        kv_bytes(RolloutSection(gpus=1, gpu_memory=16), weight_bytes=15 * GIB)


async def test_a_share_without_room_on_this_machine_is_no_fault_of_the_engine(monkeypatch):
    """A worker whose engine has a fault is started again and again."""
    async def build(engine: Engine) -> Any:
        return kv_bytes(RolloutSection(gpus=1, gpu_memory=0.1), weight_bytes=GIB, gpu_bytes=8 * GIB)

    monkeypatch.setattr(engine_module, "prepare_environment", lambda _: None)
    monkeypatch.setattr(Engine, "_build", build)
    engine = Engine(Path("model"), Version(incarnation=0, step=0), config=RolloutSection(), dtype="float32")
    with pytest.raises(UserError, match=r"rollout.gpu_memory=0.1 leaves"):
        await engine.start()


@pytest.mark.parametrize(("keys", "fix"), [
    ({"gpus": 2}, "set gpus=1 and tensor_parallel=2"),
    ({"gpus": 0.5, "tensor_parallel": 2}, "set gpus=1, or tensor_parallel=1"),
    ({"tensor_parallel": 2}, "set gpus=1, or tensor_parallel=1"),
    ({"gpu_memory": 20}, "set gpus, or use kv_cache_gb"),
    ({"gpus": 1, "exact": True}, "set gpus=0, or exact=false"),
])
def test_settings_that_no_engine_can_serve_are_refused_with_the_fix(keys: dict[str, Any], fix: str):
    with pytest.raises(ValidationError, match=fix):
        RolloutSection(**keys)


def test_libraries_in_the_engine_read_utf_8_whatever_the_locale(tmp_path, monkeypatch):
    """torch's compiler reads templates without naming an encoding when vLLM imports it."""
    template = tmp_path / "template"
    template.write_text("→", encoding="utf-8")
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    program = "import sys; print(ascii(open(sys.argv[1]).read()))"
    read = [subprocess.run([sys.executable, "-c", program, template], env=environ, capture_output=True, timeout=60,
                           check=False).stdout for environ in (dict(os.environ), engine_environment(tmp_path))]
    assert read == [b"", b"'\\u2192'\n"]
