"""GRPO: an episode's reward against the mean of its group, the same at all its steps.

Source: arXiv 2402.03300, section 4.1.2.

    S_it = R_i - p [step (i, t) invalid]           R_i = Σ_t r_it, undiscounted
    A_it = (S_it - mean) / (std + ε)               mode mean_std_norm; without the division in mean_norm

Mean and std are over all step rows of the group (statistics `rows`, what verl-agent's code does by default: long
episodes weigh more), or over the R_i (`trajectories`, the paper's formula). Under `trajectories` the local penalty of
one step therefore lowers only that step, and if all R_i are equal it is not divided. A sample of one number keeps it
(mean 0, spread 1), as in verl's code; the formula would give 0.
"""

from __future__ import annotations

from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, CalculationLine, Explanation, deviation_line, plain
from learner.credit.group_operations import center, discounted, plus, scores, states
from learner.credit.options import BroadcastOptions, EpisodeOptions
from learner.credit.types import Credit, Group, Nested

EPISODE = frozenset({"penalty", "penalty_mode", "ddof", "mode", "statistics"})
"""Keys that GRPO's advantage reads, also when it is a term of another estimator."""


def episode_keys(options: EpisodeOptions) -> frozenset[str]:
    """Returns the keys of EPISODE, without `ddof` if deviations are not divided by the spread."""
    return EPISODE - {"ddof"} if options.mode == "mean_norm" else EPISODE


def broadcast_keys(options: BroadcastOptions) -> frozenset[str]:
    """Returns `broadcast`, and the keys of GRPO's term if it is added."""
    return episode_keys(options) | {"broadcast"} if options.broadcast else frozenset({"broadcast"})


def divided(options: EpisodeOptions) -> str:
    """Returns the end of the legend of A: whether its terms are divided by their spreads."""
    return "" if options.mode == "mean_norm" else ", each term divided by its spread"


class Grpo(WithinGroup):
    """Episode-level credit against the mean of the group."""

    Options: ClassVar = EpisodeOptions

    def reads(self, options: EpisodeOptions) -> frozenset[str]:
        """Returns the keys of the episode-level term."""
        return episode_keys(options)

    def group(self, group: Group, options: EpisodeOptions) -> Credit:
        """Returns the credit of one group. raw_advantages are the deviations S - mean."""
        raw, advantages = episode_term(group, options)
        return Credit(returns=discounted(group, options), values=None, deltas=None, raw_advantages=raw,
                      advantages=advantages, states=states(group))

    def legend(self, options: EpisodeOptions) -> dict[str, str]:
        """Returns the legend. States have no values."""
        over = "episodes" if options.statistics == "trajectories" else "steps"
        return {RAW: f"S − mean, S the episode's reward less the step's penalty, the mean over the group's {over}",
                ADVANTAGE: "Â" if options.mode == "mean_norm" else "Â / σ, σ the standard deviation of S"}

    def explain(self, group: Group, credit: Credit, options: EpisodeOptions, episode: int) -> Explanation:
        """Explains the numbers, which are equal at all steps of an episode without a penalty."""
        raw = credit.raw_advantages[episode]
        return [[deviation_line(group, options, episode, t), _advantage_line(group, options, raw[t])]
                for t in range(len(raw))]


def _advantage_line(group: Group, options: EpisodeOptions, raw: float) -> CalculationLine:
    if options.mode == "mean_norm":
        return CalculationLine(formula=f"A = Â = {plain(raw)}", result=raw)
    _, spread = center(scores(group, options, options.statistics)[1], options.ddof)
    return CalculationLine(formula=f"A = Â / σ, σ the spread of S = {plain(raw)} / {plain(spread)}",
                           result=raw / spread)


def episode_term(group: Group, options: EpisodeOptions) -> tuple[Nested, Nested]:
    """Returns S - mean, and A."""
    rows, sample = scores(group, options, options.statistics)
    mean, spread = center(sample, options.ddof)
    raw = [[s - mean for s in row] for row in rows]
    if options.mode == "mean_norm":
        return raw, raw
    return raw, [[x / spread for x in row] for row in raw]


def with_broadcast(advantages: Nested, group: Group, options: BroadcastOptions) -> Nested:
    """Returns the advantages plus the weighted episode-level term."""
    if not options.broadcast:
        return advantages
    return plus(advantages, options.broadcast, episode_term(group, options)[1])
