"""The two sizes of the self-test, its model, the memory in use, and a process that holds memory of the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from deploy.launch.planning.gpu_pool import smi
from learner.selftest.scene import QWEN_1_5B
from services.config.sections import RolloutSection

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of the self-test."""

    device: Literal["cuda", "cpu"]
    dtype: Literal["bfloat16", "float32"]
    shape: Mapping[str, Any]
    """Keys of a Qwen2Config."""
    rollout: RolloutSection
    held_gib: float
    """Memory that another process holds on the GPU during all steps of the first engine."""
    requests: int
    """Number of requests in flight during an update."""
    tokens: int
    """Response tokens of each request."""
    loop: tuple[str, ...]
    """Overrides of alfworld-1.5b for the complete loop."""


_LOOP = ("steps=3", "env.servers=1", "learner.minibatch_rows=16", "eval.every=0", "checkpoint.every=3",
         "checkpoint.keep=1", "env.prompt=compact", "env.history=2", "hardware=null")
GPU = Size(
    device="cuda", dtype="bfloat16",
    shape=QWEN_1_5B,
    rollout=RolloutSection(gpus=0.5, slots=64, max_prompt_tokens=2048, max_response_tokens=512, kv_cache_gb=16,
                           sleep=True),
    held_gib=15, requests=64, tokens=256,
    loop=(*_LOOP, "learner.groups_per_step=4", "learner.group_size=4", "env.max_steps=6", "rollout.slots=16"))
CPU = Size(
    device="cpu", dtype="float32",
    shape={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
           "intermediate_size": 128, "vocab_size": 1024, "tie_word_embeddings": True, "max_position_embeddings": 1024},
    rollout=RolloutSection(slots=8, max_prompt_tokens=384, max_response_tokens=128, kv_cache_gb=0.1, threads=1),
    held_gib=0, requests=8, tokens=96,
    loop=(*_LOOP, "learner.groups_per_step=1", "learner.group_size=2", "env.max_steps=2", "rollout.slots=2",
          "rollout.gpus=0", "learner.gpus=0", "rollout.kv_cache_gb=0.1", "rollout.threads=1", "learner.threads=1",
          "model.dtype=float32", "rollout.max_prompt_tokens=480", "rollout.max_response_tokens=8",
          "learner.token_budget=1024"))


def make_model(size: Size, folder: Path, *, seed: int = SEED) -> Path:
    """Writes a model of random weights with our tokenizer, in the form that model.path expects."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from envservice.registry import open_environment
    from learner.cold_start.scratch_model import train_tokenizer
    from services.config.tree import EnvSection

    environment = open_environment(EnvSection())
    tasks = environment.tasks(environment.training_splits()[0])[:20]
    texts = [environment.open(task).reset().observation for task in tasks]
    tokenizer = train_tokenizer(texts)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    end: Any = tokenizer.eos_token_id
    config = Qwen2Config(**size.shape, bos_token_id=None, eos_token_id=end)
    model = Qwen2ForCausalLM(config).to(getattr(torch, size.dtype))
    model.save_pretrained(folder)
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert described["vocab_size"] == size.shape["vocab_size"]
    return folder


HOLDER = """
import sys, torch
held = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_memory(gib: float) -> Iterator[None]:
    """Lets another process hold that much memory of the GPU during the block. Raises RuntimeError if it cannot."""
    if not gib:
        yield
        return
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"held\n":
            raise RuntimeError(f"another process could not take {gib:g} GiB of the GPU")
        yield
    finally:
        holder.communicate()


def used_mib(size: Size) -> float:
    """Returns the memory in use: of the GPU, or the resident memory of the processes below this one."""
    if size.device == "cuda":
        return float(smi("memory.used")[0])
    return sum(child.memory_info().rss for child in psutil.Process().children(recursive=True)) / 2**20
