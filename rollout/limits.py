"""Bounds of an episode, which its loop, the judge and the correction of prompts share."""

from __future__ import annotations

from dataclasses import dataclass

from services.errors import EnvFault
from services.rewards import LARGEST_REWARD, within_reward_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an episode, in addition to its ticket's max_steps."""

    prompt_tokens: int
    response_tokens: int
    reward_scale: float
    """Factor on the environment's reward in training."""

    def scaled(self, reward: float) -> float:
        """Returns an environment's reward as training counts it. Raises EnvFault beyond LARGEST_REWARD."""
        product = reward * self.reward_scale
        if not within_reward_limit(product):
            raise EnvFault(f"the reward {reward:g} times env.reward_scale, {self.reward_scale:g}, is {product:g}, and "
                           f"at most {LARGEST_REWARD:g} in size is taken")
        return product
