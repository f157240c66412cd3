"""Options that several estimators share. An estimator's `Options` combines these and adds its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from services.config.sections import CreditSection


class CreditOptions(CreditSection):
    """The base of all options models: what `learner.credit` has for every estimator.

    A class of its own tells checked options from the open section of a config.
    """


class SpreadOptions(CreditOptions):
    """Which standard deviation divides."""

    ddof: Literal[0, 1] = 1
    """1: sample standard deviation. 0: population standard deviation."""


class StatisticsOptions(CreditOptions):
    """Whether a group is a set of turns or of episodes."""

    statistics: Literal["rows", "trajectories"] = "rows"
    """Whether means of scores are over the turns of a group (rows) or its episodes (trajectories)."""


class EpisodeOptions(StatisticsOptions, SpreadOptions):
    """GRPO's advantage, also as a term of other estimators."""

    mode: Literal["mean_std_norm", "mean_norm"] = "mean_std_norm"
    """Whether deviations from the mean are divided by the standard deviation."""


class BroadcastOptions(EpisodeOptions):
    """GRPO's advantage as a term that is added to every turn. `mode` and `statistics` are those of that term."""

    broadcast: float = Field(default=0.0, ge=0)
    """Weight of GRPO's episode-level advantage, which is added to every turn."""


class ScaleOptions(SpreadOptions):
    """The sample whose mean and spread rescale Â."""

    normalize: Literal["group", "state", "batch", "none"] = "group"
    """Whether advantages are normalised over each group, over the turns of a group in each state, over all groups of a
    learner step (batch), or not at all."""
    spread_floor: float = Field(default=0.0, ge=0)
    """Least standard deviation that `normalize: state` divides by, on the scale of Â."""


class RecursionOptions(ScaleOptions):
    """GAGPO's recursion, whatever the values are."""

    lam: float = Field(default=0.8, ge=0, le=1)
    """λ of GAE."""
    bootstrap: bool = False
    """Whether an episode that a budget cut ends with the value of the state it was cut in, if that state has one. Else
    it ends with 0."""
