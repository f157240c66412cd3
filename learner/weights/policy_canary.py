"""The learner's part of a canary (services/weights/canary.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from learner.model.policy import Policy, load_policy
from learner.model.probe import rounding
from learner.rows.packing import Rows, pack_rows
from services.weights.canary import PROMPTS, Canary


def policy_canary(policy: Policy, device: torch.device, *, grid: bool, half: bool) -> Canary:
    """Returns what the policy computes for the canary's prompts. A collective of all ranks.

    `grid`: whether packs have a rectangle. `half`: whether policy or sampler compute in bfloat16.
    """
    rows = _rows()
    with torch.no_grad():
        logprobs, _ = policy(pack_rows(rows, np.arange(len(PROMPTS)), device, grid=grid))
        _, spread = policy(pack_rows(rows, np.array([0]), device), own=True)
    return Canary(logprobs=logprobs.tolist(), rounding=rounding(policy, float(spread.mean()), half=half))


def folder_canary(folder: Path, *, half: bool) -> Canary:
    """Returns what the model in a folder computes by Hugging Face's own code, in float32 and on the CPU."""
    policy, rows = load_policy(folder), _rows()
    with torch.no_grad():
        alone = [policy(pack_rows(rows, np.array([k])), own=True) for k in range(len(PROMPTS))]
    logprobs, spreads = (torch.cat(parts) for parts in zip(*alone, strict=True))
    return Canary(logprobs=logprobs.tolist(), rounding=rounding(policy, float(spreads.mean()), half=half))


def _rows() -> Rows:
    """Returns the canary's prompts as rows whose response is all but the first token."""
    count, responses = len(PROMPTS), np.array([len(prompt) - 1 for prompt in PROMPTS])
    return Rows(
        tokens=np.concatenate(PROMPTS).astype(np.int32), sequence=np.arange(count),
        prompt_lengths=np.ones(count, np.int64), response_lengths=responses,
        sampler_logprobs=np.zeros(int(responses.sum()), np.float32), advantages=np.zeros(count),
        temperatures=np.ones(count), stale=np.zeros(count, np.bool_), ends=np.ones(count, np.bool_))
