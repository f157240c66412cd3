"""Bounds of an episode, which its loop, the judge and the correction of prompts share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an episode, in addition to its ticket's max_steps."""

    prompt_tokens: int
    response_tokens: int
    reward_scale: float
    """Factor on the environment's reward in training."""
