"""The model and the rows of the self-test: random weights of a known shape, random tokens of known lengths."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from services.config.tree import Config
from services.records import Episode, Step, Ticket, Version, VersionSpan

OTHERS_S = 10.0
"""Longest wait in seconds for a collection of another thread, whose finalizers may wait for anything."""
PAUSE_S = 0.01
OLDEST = 2
"""The generation of a complete collection."""


def collect_garbage() -> None:
    """Frees all objects that only refer to each other.

    `gc.collect` returns at once, and frees nothing, while another thread collects.
    """
    caller, deadline = threading.get_ident(), time.monotonic() + OTHERS_S
    collected = False

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal collected
        collected |= phase == "stop" and info["generation"] == OLDEST and threading.get_ident() == caller

    gc.callbacks.append(note)
    try:
        gc.collect()
        while not collected and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            gc.collect()
    finally:
        gc.callbacks.remove(note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Sizes of the self-test."""

    model: Mapping[str, Any]
    """Arguments of transformers' Qwen2Config."""
    packs: tuple[int, ...]
    """Token budgets of packs to train with, ascending."""
    prompt: int
    response: int
    """Response tokens of a row, the same for every row."""
    square: int
    """Side of the square matrices whose product measures the device."""
    lora_rank: int = 16
    spread: int = 0
    """Standard deviation of the prompts' lengths, in tokens. No prompt is shorter than one token."""

    @property
    def row(self) -> int:
        """Number of tokens of one row, on average."""
        return self.prompt + self.response


QWEN_1_5B: Mapping[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "max_position_embeddings": 32_768, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
"""The shape of Qwen2.5-1.5B, as arguments of transformers' Qwen2Config."""
GPU = Scene(
    model=QWEN_1_5B,
    packs=(4096, 8192, 12_288), prompt=3584, response=512, square=8192)
"""The sizes for a GPU of 80 GB, which keeps all activations of these packs. Rows have 4096 tokens."""
TINY = Scene(
    model={"vocab_size": 199, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    packs=(64, 128), prompt=12, response=4, square=64, lora_rank=4)
"""The sizes for any CPU: the same code runs in seconds."""


def write_model(scene: Scene, folder: Path, device: torch.device) -> Path:
    """Writes a Hugging Face folder of random weights in bfloat16."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**scene.model))
    cast(nn.Module, model).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def groups(scene: Scene, rows: int) -> list[list[Episode]]:
    """Returns one group of two episodes with `rows` steps in all (at least 2). The first episode is won."""
    rng = np.random.default_rng(0)
    shares = (rows - rows // 2, rows // 2)
    return [[_episode(scene, rng, k, count) for k, count in enumerate(shares)]]


def _episode(scene: Scene, rng: np.random.Generator, k: int, count: int) -> Episode:
    def step(last: bool) -> Step:
        length = max(1, round(rng.normal(scene.prompt, scene.spread))) if scene.spread else scene.prompt
        prompt, response = (rng.integers(0, scene.model["vocab_size"], n, dtype=np.int32)
                            for n in (length, scene.response))
        return Step(observation=str(rng.integers(1 << 30)), prompt_ids=prompt, response_ids=response,
                    logprobs=-rng.random(scene.response, dtype=np.float32),
                    spans=[VersionSpan(version=Version(incarnation=1, step=0), start=0, end=scene.response)],
                    action="go", valid=True, admissible=True, reward=1.0 if last and k == 0 else 0.0)

    ticket = Ticket(group="train/00000000", k=k, size=2, task="selftest/0", seed=k, kind="train", temperature=1.0,
                    max_steps=count)
    return Episode(ticket=ticket, steps=[step(t == count - 1) for t in range(count)], won=k == 0,
                   end="won" if k == 0 else "turns", worker="selftest", attempt=1, seconds=0.0, engine="none")


def config(tokens: int, device: torch.device, **learner: Any) -> Config:
    """Returns the settings of one measurement: bfloat16 over float32 weights, one update a step."""
    return Config(name="selftest", steps=1, model={"dtype": "bfloat16"},  # pyright: ignore[reportArgumentType]
                  learner={"token_budget": tokens, "minibatch_rows": 1 << 20, "threads": 1,
                           "gpus": int(device.type == "cuda"), "loss": {"kl": 0.01}, **learner})  # pyright: ignore[reportArgumentType]


class Gauge:
    """Measures seconds and peak memory on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"

    def seconds(self, work: Callable[[], object], *, warm: int = 1, times: int = 3) -> float:
        """Returns the mean seconds of `times` runs after `warm` other runs."""
        for _ in range(warm):
            work()
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - start) / times

    def wait(self) -> None:
        """Waits until the device has finished all work."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def now(self) -> float:
        """Returns the seconds of a clock, once the device has finished all work."""
        self.wait()
        return time.perf_counter()

    def held(self) -> int:
        """Returns the bytes of tensors on the device; 0 on a CPU, which does not count them."""
        return torch.cuda.memory_allocated(self.device) if self.cuda else 0

    def fresh(self) -> None:
        """Frees unused memory, and measures the peak from here on."""
        collect_garbage()  # a sharded model refers to itself, so it outlives its last name
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        """Returns the peak bytes of tensors since `fresh`; None on a CPU, which does not count them."""
        return torch.cuda.max_memory_allocated(self.device) if self.cuda else None

    def reserved(self) -> int:
        """Returns the peak bytes that torch's allocator has taken since `fresh`; 0 on a CPU."""
        return torch.cuda.max_memory_reserved(self.device) if self.cuda else 0

    def matmul_rate(self, side: int) -> float:
        """Returns the FLOPs per second of a product of two random bfloat16 matrices."""
        a, b = (torch.randn(side, side, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        return 2 * side**3 / self.seconds(lambda: a @ b, warm=3, times=10)
