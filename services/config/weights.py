"""The section `weights`: the way of new weights from the learner to the samplers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from services.config.env import Section


class WeightsSection(Section):
    """How new weights reach the samplers."""

    transfer: Literal["auto", "host", "nccl", "ipc"] = "auto"
    """`host`: through host memory. `nccl`: between separate GPUs, each rank sends its shards. `ipc`: within a GPU that
    learner and sampler share. auto: `ipc` or `nccl` if the GPUs have room for it, else `host`."""
    seconds: float = Field(default=60.0, gt=0)
    """Deadline in seconds of one transfer by `nccl` or `ipc`. A version that is late goes through host memory."""
