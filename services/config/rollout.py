"""The keys of the rollout workers, and of the supervision of all processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from services.config.env import Section

Temperature = Annotated[float, Field(gt=0, le=100)]


class RolloutSection(Section):
    """The samplers."""

    workers: int = Field(default=1, ge=1)
    """Number of samplers. Each has an engine of its own."""
    slots: int = Field(default=64, ge=1)
    """Episodes that one worker plays at once."""
    cpus: float = Field(default=1, ge=0)
    """CPUs that Ray reserves for one worker."""
    gpus: float = Field(default=0, ge=0)
    """GPUs that Ray reserves for one worker."""
    temperature: Temperature = 1.0
    """Sampling temperature of training episodes."""
    max_prompt_tokens: int = Field(default=2048, ge=16)
    """Longest prompt. A longer one ends the episode."""
    max_response_tokens: int = Field(default=512, ge=1)
    """Longest answer of one turn."""
    kv_cache_gb: float = Field(default=1.0, gt=0)
    """GB of KV cache of one worker."""
    threads: int = Field(default=2, ge=1)
    """OpenMP threads of one worker."""
    start_seconds: float = Field(default=1800, gt=0)
    """Longest time in which the engine may load the model."""
    sample_seconds: float = Field(default=300, gt=0)
    """Longest time without a step of the engine while a request waits; then the worker ends."""
    update_seconds: float = Field(default=900, gt=0)
    """Longest time in which a version of the weights may be fetched, and again in which it may be loaded."""
    exact: bool = False
    """One request at a time, float32, no prefix cache: a run, interrupted or not, ends with the same bits."""


class SupervisionSection(Section):
    """How long the controller waits before it starts a process again or ends the run."""

    start_seconds: float = Field(default=1800, gt=0)
    """Longest time from the start of a process to its first sign of life, with the wait for a place on the cluster."""
    silence_seconds: float = Field(default=180, gt=0)
    """A worker or learner without a heartbeat for so long is started again."""
    longest_pause_seconds: float = Field(default=300, ge=0)
    """The pauses between the starts of a process that dies again and again grow from 1 s to this."""
    stall_seconds: float = Field(default=3600, gt=0)
    """The run ends when nothing moves for so long: no count of the store, turn, update or learner step. The wait for a
    process that starts does not count."""
