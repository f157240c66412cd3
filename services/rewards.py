"""The limit of rewards and task scores in episodes. Light: imports nothing.

Logged groups have a wider one of their own (learner/logged_groups/form.py).
"""

from __future__ import annotations

from typing import SupportsFloat

LARGEST_REWARD = 1e6
"""Largest size of a turn's reward, raw and scaled, and of a task score: squares and sums keep float64's precision."""


def within_reward_limit(number: SupportsFloat) -> bool:
    """Returns whether a number is finite and at most LARGEST_REWARD in size."""
    try:
        return abs(float(number)) <= LARGEST_REWARD
    except OverflowError:  # an integer beyond float64
        return False
