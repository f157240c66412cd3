"""What the learner minimises: the sections `learner.loss` and `learner.critic`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from services.config.env import Section


class LossSection(Section):
    """The policy objective."""

    ratio: Literal["sequence", "token"] = "sequence"
    """One importance ratio per action (sequence) or per token. An estimator with a critic needs token."""
    aggregation: Literal["actions", "tokens"] = "actions"
    """Mean of the policy term: over actions, each the mean of its tokens, or over all tokens alike."""
    clip_low: float = Field(default=0.2, gt=0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    kl: float = Field(default=0.01, ge=0)
    """Weight of the k3 estimate of the KL divergence to the initial policy. 0 saves the reference model."""
    entropy: float = Field(default=0.001, ge=0)
    """Weight of the entropy bonus."""
    is_cap: float = Field(default=2.0, gt=0)
    """Truncation of the importance weights at staleness >= 1."""


class CriticSection(Section):
    """The value model of estimators that learn one (PPO): the policy's first weights with a scalar head."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate of the critic's AdamW."""
    value_clip: float = Field(default=0.5, gt=0)
    """How far a value may move from the one before the step, before its loss stops to count the movement."""
