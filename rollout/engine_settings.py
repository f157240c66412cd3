"""How the engine is started: what vLLM reads from the environment, and its arguments. Light until it is called."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.config.rollout import RolloutSection
from services.errors import UserError
from services.process.threads import wait_politely

BLOCK_TOKENS = 32
"""KV block: prompts share whole blocks only, and ours are short."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM's attention on CPUs has kernels for (vllm/v1/attention/backends/cpu_attn.py)."""


def prepare_environment(threads: int) -> None:
    """Set what vLLM reads from the environment, for this process and the engine's: call before vllm is imported."""
    wait_politely()
    os.environ.update({
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker lives in the engine's process: one process less to start
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # "auto" keeps a core for itself, half of a two-core machine
        "OMP_NUM_THREADS": str(threads),
        "TORCHDYNAMO_DISABLE": "1",  # enforce_eager alone still compiles the logprobs, 13 s at the first request
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    })


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """vLLM leaves sockets and rendezvous files where temporary files go; what is started in the block has them here."""
    kept = tempfile.tempdir, {name: os.environ.get(name) for name in ("TMPDIR", "VLLM_RPC_BASE_PATH")}
    tempfile.tempdir = str(folder)
    os.environ.update(dict.fromkeys(kept[1], str(folder)))
    try:
        yield
    finally:
        tempfile.tempdir = kept[0]
        for name, value in kept[1].items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def engine_arguments(path: Path, config: RolloutSection, *, dtype: str, seed: int) -> Any:
    """vLLM's arguments for the model in the folder `path`. Call prepare_environment first."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    length = config.max_prompt_tokens + config.max_response_tokens
    return AsyncEngineArgs(
        model=str(path),
        skip_tokenizer_init=True,
        trust_remote_code=False,
        dtype=dtype,  # pyright: ignore[reportArgumentType]  # checked by vLLM
        seed=seed,
        generation_config="vllm",
        enforce_eager=True,
        max_model_len=length,
        max_num_seqs=config.slots,
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(length, 4096),
        # A cached prefix changes the shapes of the prefill and so the last bits.
        enable_prefix_caching=not config.exact,
        block_size=BLOCK_TOKENS,
        kv_cache_memory_bytes=int(config.kv_cache_gb * 2**30),
        logprobs_mode="processed_logprobs",
        worker_extension_cls="rollout.vllm_extension.PackedLoader",
        disable_log_stats=True,
    )


def check_shape(path: Path) -> None:
    """Raises UserError if vLLM on a CPU has no attention for the heads of the model in `path`."""
    model = json.loads((path / "config.json").read_text())
    heads = model.get("num_attention_heads")
    size = model.get("head_dim") or (model["hidden_size"] // heads if heads and "hidden_size" in model else None)
    if size is not None and size not in CPU_HEAD_SIZES:
        raise UserError(f"the model at {path} has heads of size {size}, which the sampler cannot serve on a CPU",
                        f"use a model with heads of {', '.join(map(str, CPU_HEAD_SIZES))}, or set rollout.gpus")
