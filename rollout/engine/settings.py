"""The settings with which the engine starts: vLLM's environment variables and arguments. Light at import."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from services.amounts import GIB
from services.config.sections import RolloutSection
from services.errors import UserError
from services.process.env_variables import limit_openmp_spin

BLOCK_TOKENS = 32
"""Tokens of a KV block on CPUs. vLLM's default is 128, but prompts share only full blocks, and ours are short."""
CUDA_BATCH_TOKENS = 16384
"""Tokens of one engine step on a GPU. With fewer, a large GPU waits for the next launch."""
CUDA_FREE_SHARE = 0.05
ENGINE_GIB = 4.0
"""Memory of vLLM on a GPU in addition to weights and KV cache: its CUDA context, the graphs, and the activations of
CUDA_BATCH_TOKENS. An estimate, not yet measured."""
MIN_KV_GIB = 0.5
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM's attention on CPUs has kernels for (vllm/v1/attention/backends/cpu_attn.py)."""


Device = Literal["cpu", "cuda"]


def device_of(config: RolloutSection) -> Device:
    """Returns the device that a worker samples on. Preflight has checked that vLLM's build fits it."""
    return "cuda" if config.gpus else "cpu"


def prepare_environment(config: RolloutSection) -> None:
    """Sets vLLM's environment variables for this process and the engine's. Call it before vllm is imported."""
    limit_openmp_spin()
    os.environ.update(environment(config))


def environment(config: RolloutSection) -> dict[str, str]:
    """Returns the variables that vLLM reads."""
    common = {
        "OMP_NUM_THREADS": str(config.threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # on CPUs process.py forks
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    if device_of(config) == "cuda":
        return common | {
            "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it is never used for seeded requests with processed logprobs
            # Attention in float32 is Triton's, whose products would keep 10 bits: the learner's probe refuses that.
            "TRITON_F32_DEFAULT": "ieee",
        }
    return common | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker runs in the engine's process: one process less to start
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" keeps a core for itself, half of a two-core machine
        "TORCHDYNAMO_DISABLE": "1",  # enforce_eager alone still compiles the logprobs, 13 s at the first request
    }


def engine_environment(folder: Path) -> dict[str, str]:
    """Returns the environment of the engine's process: this one's, with temporary files in `folder`.

    vLLM does not remove all of them. The guard finds the engine's processes by TMPDIR. PYTHONUTF8: vLLM and torch read
    files of their own in the locale's encoding.
    """
    preloaded = [*filter(None, [os.environ.get("LD_PRELOAD")]), *_openmp()]
    return os.environ | {"TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder), "LD_PRELOAD": ":".join(preloaded),
                         "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1"}


def _openmp() -> list[str]:
    """Returns torch's own OpenMP library, if it has one. vLLM's kernels must use the same threads as torch.

    vLLM preloads it into an EngineCore that it spawns. A fork has to have it from its parent.
    """
    spec = importlib.util.find_spec("torch")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    places = [place for root in roots for place in (root.parent / "torch.libs", root / "lib")]
    return [str(path) for place in places for path in sorted(place.glob("libgomp*.so*"))][:1]


def engine_arguments(
    path: Path, config: RolloutSection, *, dtype: str, seed: int, kv_bytes: int, load: bool = True,
) -> dict[str, Any]:
    """Returns the fields of vLLM's AsyncEngineArgs for the model in the folder `path`. Pure.

    `kv_bytes`: KV cache on each device. `load`: whether the weights of the folder are read. Without it they are random,
    for an engine whose first weights come by an update.
    """
    length = config.row_tokens
    common = {
        "model": str(path),
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "seed": seed,
        "generation_config": "vllm",  # ignores the sampling parameters in the model's file, not its end tokens
        "config_format": "hf", "load_format": "hf" if load else "dummy",  # as the learner: "auto" prefers Mistral's own
        "max_model_len": length,
        "max_num_seqs": config.slots,
        # A cached prefix changes the shapes of the prefill and so the last bits.
        "enable_prefix_caching": not config.exact,
        "kv_cache_memory_bytes": kv_bytes,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "rollout.engine.extension.VersionLoader",
        "disable_log_stats": True,
    }
    if device_of(config) == "cuda":
        return common | {
            "enforce_eager": False,  # CUDA graphs: a small model decodes about three times as fast
            "enable_chunked_prefill": True,
            "max_num_batched_tokens": max(length, CUDA_BATCH_TOKENS),
            "tensor_parallel_size": config.tensor_parallel,
            # Inside a placement group vLLM would ask Ray for a bundle of its own for each GPU.
            "distributed_executor_backend": "mp" if config.tensor_parallel > 1 else None,
            # vLLM wants this share of the GPU to be free before it looks at kv_cache_memory_bytes, and a learner may
            # hold most of the GPU.
            "gpu_memory_utilization": CUDA_FREE_SHARE,
            "enable_sleep_mode": config.sleep,
        }
    return common | {
        "enforce_eager": True,  # compiling gains nothing for small models
        "enable_chunked_prefill": False,  # a seeded request whose prompt is split ends vLLM's CPU build
        "max_num_batched_tokens": max(length, 4096),
        "block_size": BLOCK_TOKENS,
    }


def kv_bytes(config: RolloutSection, *, weight_bytes: int, gpu_bytes: int = 0) -> int:
    """Returns the KV cache of an engine on each of its devices, in bytes.

    `weight_bytes`: all weights in the sampler's dtype. `gpu_bytes`: memory of one GPU, for rollout.gpu_memory as a
    share. Raises UserError if rollout.gpu_memory leaves no room for a KV cache.
    """
    if config.gpu_memory is None:
        return int(config.kv_cache_gb * GIB)
    memory = config.gpu_memory * (gpu_bytes if config.gpu_memory <= 1 else GIB)
    rest = int(memory - weight_bytes / config.tensor_parallel - ENGINE_GIB * GIB)
    if rest < MIN_KV_GIB * GIB:
        raise UserError(
            f"rollout.gpu_memory={config.gpu_memory:g} leaves {rest / GIB:.1f} GiB for the KV cache next to "
            f"{weight_bytes / config.tensor_parallel / GIB:.1f} GiB of weights and {ENGINE_GIB:g} GiB for vLLM itself",
            "raise it, or rollout.tensor_parallel")
    return rest


def gpu_bytes(config: RolloutSection) -> int:
    """Returns the memory of the first GPU that this process sees, in bytes; 0 unless rollout.gpu_memory is a share.

    Starts no CUDA context. For a share it imports vLLM, which the worker's process does not do otherwise.
    """
    if config.gpu_memory is None or config.gpu_memory > 1:
        return 0
    from vllm.platforms import current_platform

    return current_platform.get_device_total_memory()


def check_shape(path: Path) -> None:
    """Raises UserError if vLLM on a CPU has no attention for the heads of the model in `path`."""
    model = json.loads((path / "config.json").read_text(encoding="utf-8"))
    heads = model.get("num_attention_heads")
    size = model.get("head_dim") or (model["hidden_size"] // heads if heads and "hidden_size" in model else None)
    if size is not None and size not in CPU_HEAD_SIZES:
        raise UserError(f"the model at {path} has heads of size {size}, which the sampler cannot serve on a CPU",
                        f"use a model with heads of {', '.join(map(str, CPU_HEAD_SIZES))}, or set rollout.gpus")
