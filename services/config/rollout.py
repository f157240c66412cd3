"""The sections `rollout` and `supervision`."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from services.config.env import Section

COLDEST = 0.01
"""Lowest temperature. vLLM would sample at this one for any lower one, and only its own log would say so."""
Temperature = Annotated[float, Field(ge=COLDEST, le=100)]


class RolloutSection(Section):
    """The rollout workers, which sample episodes."""

    workers: int = Field(default=1, ge=1)
    """Number of rollout workers. Each has its own engine."""
    slots: int = Field(default=64, ge=1)
    """Episodes that one worker plays at once."""
    cpus: float = Field(default=1, ge=0)
    """CPUs that Ray reserves for one worker."""
    gpus: float = Field(default=0, ge=0)
    """GPUs that Ray reserves for each of the GPUs that a worker uses: 1, or a share of one. 0: it samples on CPUs."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that one worker's engine is spread over. They must be in one node."""
    gpu_memory: float | None = Field(default=None, gt=0)
    """Memory that a worker may take on each of its GPUs: a value up to 1 is a share of the GPU, a larger one is GB.
    The KV cache gets what the weights leave. None: the KV cache has rollout.kv_cache_gb."""
    sleep: bool = False
    """Whether sampler and learner take turns on a GPU that they share. Weights and optimizer of the one that waits lie
    in host memory, and the KV cache is computed again. Then each may use nearly the whole GPU in its turn."""
    temperature: Temperature = 1.0
    """Sampling temperature of training episodes."""
    max_prompt_tokens: int = Field(default=2048, ge=16)
    """Longest prompt, in tokens. A longer one ends the episode."""
    max_response_tokens: int = Field(default=512, ge=1)
    """Longest answer of one turn, in tokens."""
    kv_cache_gb: float = Field(default=1.0, gt=0)
    """Size of one worker's KV cache in GB, on each of its GPUs."""
    threads: int = Field(default=2, ge=1)
    """OpenMP threads of one worker."""
    start_seconds: float = Field(default=1800, gt=0)
    """Seconds that the engine may take to load the model."""
    sample_seconds: float = Field(default=300, gt=0)
    """Seconds without a step of the engine while a request waits, after which the worker ends."""
    retry_seconds: float = Field(default=15, ge=0, le=300)
    """Pause in seconds before the second attempt of an episode that failed, give or take a quarter. The one before the
    third is four times as long, so that the attempts outlast a fault of about a minute."""
    update_seconds: float = Field(default=900, gt=0)
    """Seconds that fetching a version of the weights may take, and as many again for loading it."""
    exact: bool = False
    """One request at a time, float32, no prefix cache: a run, interrupted or not, ends with the same bits. For CPUs,
    at learner.staleness=0."""

    @property
    def row_tokens(self) -> int:
        """Tokens of the longest row: a prompt and its response."""
        return self.max_prompt_tokens + self.max_response_tokens

    @property
    def reserved_gpus(self) -> float:
        """GPUs that Ray reserves for one worker."""
        return self.gpus * self.tensor_parallel

    @model_validator(mode="after")
    def _gpus(self) -> RolloutSection:
        if self.gpus > 1:
            raise ValueError(f"gpus={self.gpus:g} would reserve more GPUs than the engine uses; "
                             f"set gpus=1 and tensor_parallel={math.ceil(self.gpus)}")
        if self.tensor_parallel > 1 and self.gpus != 1:
            raise ValueError(f"tensor_parallel={self.tensor_parallel} needs whole GPUs, and gpus={self.gpus:g}; "
                             "set gpus=1, or tensor_parallel=1")
        if self.gpu_memory is not None and not self.gpus:
            raise ValueError(f"gpu_memory={self.gpu_memory:g} does nothing on CPUs; set gpus, or use kv_cache_gb")
        if self.exact and self.gpus:
            raise ValueError("exact promises the same bits, and the sums of a GPU come in any order; "
                             "set gpus=0, or exact=false")
        return self


class SupervisionSection(Section):
    """How long the controller waits before it restarts a process or ends the run."""

    reach_seconds: float = Field(default=10, ge=0)
    """Seconds in which an external Redis and the servers of env.urls must answer a run for the first time. After that
    their address counts as wrong. Give it more where they are started together with the run."""
    start_seconds: float = Field(default=1800, gt=0)
    """Seconds from the start of a process to its first heartbeat, without the wait for a place on the cluster."""
    place_seconds: float = Field(default=3600, gt=0)
    """Seconds without a running process of a role and without a place for one on the Ray cluster after which the run
    ends. Until then it waits for nodes, for example from an autoscaler."""
    drain_seconds: float = Field(default=900, gt=0)
    """Seconds in which a process that is no longer wanted may finish its episodes. Then it is stopped, and others play
    its tickets again."""
    leave_seconds: float = Field(default=20, ge=0)
    """Seconds after SIGTERM in which the learner may finish its step and write a checkpoint. Whoever sends the signal
    should kill no sooner than some ten seconds later. 0: it leaves at once. Ctrl-C waits for the step, however long it
    takes; Ctrl-C again ends at once."""
    silence_seconds: float = Field(default=180, gt=0)
    """Seconds without a heartbeat after which a worker or learner is restarted."""
    longest_pause_seconds: float = Field(default=300, ge=0)
    """Longest pause in seconds between restarts of a process that dies repeatedly. Pauses start at 1 s and grow."""
    stall_seconds: float = Field(default=3600, gt=0)
    """Seconds without any progress (a count of the store, a turn, a weight update, a learner step) after which the run
    ends. The wait for a process that is starting does not count."""
