"""RLVMR: the episode's credit, plus a rule's reward for the kind of reasoning of each step (arXiv 2507.22844).

    A_E = GRPO's advantage (grpo.py)               same mode; its statistics by the key `statistics`
    r_t = 1 or 0, by the tag of step t:
        planning      1 if the episode earns more than 0, without penalties
        explore       1 if no earlier valid step of the episode took the same action
        reflection    1 if the step before was invalid or its action not admissible, and the action is another one;
                      at the first step 1
        any other     0; an invalid step counts as one without a tag
    A_T = (r_t - mean) / (std + ε)                 over the group's steps with the same tag; mean_norm does not divide
    A_t = A_E + ω A_T

The step's tag comes from a prompt that asks for one (env.prompt=meta). The rules and the combination are those of the
authors' code (RLVMR in digitalhuman, core_rlvmr.py), whose ALFWorld script has ω = 1. A tag with only one step gives
A_T = r_t, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import ClassVar

from learner.credit.estimator import WithinGroup
from learner.credit.explanation import ADVANTAGE, RAW, CalculationLine, Explanation, signed
from learner.credit.gigpo import GigpoOptions
from learner.credit.group_operations import center, discounted, plus, states
from learner.credit.grpo import divided, episode_keys, episode_term
from learner.credit.types import Credit, CreditStep, Group, Nested

REWARDED = ("planning", "explore", "reflection")


class Rlvmr(WithinGroup):
    """Credit of the episode and of the reasoning of its steps."""

    Options: ClassVar = GigpoOptions
    rewards_tags: ClassVar[bool] = True
    """Whether the prompt has to ask for a kind of reasoning. Absent means False."""
    compares_actions: ClassVar[bool] = True
    """Whether every step needs its action. Two actions that are not known would be the same one."""

    def reads(self, options: GigpoOptions) -> frozenset[str]:
        """Returns GRPO's keys and the weight of the second term."""
        return episode_keys(options) | {"omega"}

    def group(self, group: Group, options: GigpoOptions) -> Credit:
        """Returns the credit of one group. raw_advantages are A without division by a spread."""
        raw_e, advantages_e = episode_term(group, options)
        raw_t, advantages_t = _tag_term(group, options)
        return Credit(returns=discounted(group, options), values=None, deltas=None, states=states(group),
                      raw_advantages=plus(raw_e, options.omega, raw_t),
                      advantages=plus(advantages_e, options.omega, advantages_t))

    def legend(self, options: GigpoOptions) -> dict[str, str]:
        """Returns the legend."""
        return {RAW: "GRPO's S − mean, plus ω (r − mean r of the steps with the same tag)",
                ADVANTAGE: f"Â{divided(options)}"}

    def explain(self, group: Group, credit: Credit, options: GigpoOptions, episode: int) -> Explanation:  # noqa: ARG002
        """Explains the two terms: undivided in Â, each divided by its spread in A."""
        (raw_e, advantages_e), (raw_t, advantages_t) = episode_term(group, options), _tag_term(group, options)

        def line(formula: str, first: float, second: float) -> CalculationLine:
            return CalculationLine(formula=f"{formula} = {signed(first)} + {options.omega:g} · ({signed(second)})",
                                   result=first + options.omega * second)

        return [[line("Â = (S − mean S) + ω (r − mean r of its tag)", raw_e[episode][t], raw_t[episode][t]),
                 line("A = A_E + ω A_T", advantages_e[episode][t], advantages_t[episode][t])]
                for t in range(len(group[episode]))]


def tag_rewards(episode: Sequence[CreditStep]) -> list[float]:
    """Returns r_t of the steps of one episode, [T]."""
    won = fsum(step.reward for step in episode) > 0
    tried: set[str | None] = set()
    out: list[float] = []
    for t, step in enumerate(episode):
        before = episode[t - 1] if t else None
        earned = {"planning": won, "explore": step.action not in tried,
                  "reflection": before is None or ((before.invalid or not before.admissible)
                                                   and before.action != step.action)}
        out.append(float(not step.invalid and earned.get(step.tag, False)))
        if not step.invalid:
            tried.add(step.action)
    return out


def _tag_term(group: Group, options: GigpoOptions) -> tuple[Nested, Nested]:
    """Returns r - mean, and A_T."""
    rows = [tag_rewards(episode) for episode in group]
    tags = [[step.tag if step.tag in REWARDED and not step.invalid else "" for step in episode] for episode in group]
    samples: dict[str, list[float]] = {}
    for row, names in zip(rows, tags, strict=True):
        for r, tag in zip(row, names, strict=True):
            samples.setdefault(tag, []).append(r)
    centers = {tag: center(sample, options.ddof) for tag, sample in samples.items()}
    raw = [[r - centers[tag][0] for r, tag in zip(row, names, strict=True)]
           for row, names in zip(rows, tags, strict=True)]
    if options.mode == "mean_norm":
        return raw, raw
    return raw, [[x / centers[tag][1] for x, tag in zip(row, names, strict=True)]
                 for row, names in zip(raw, tags, strict=True)]
