"""Takes one learner step over all rows of a batch. Every rank gets the same rows and computes its share of them.

Denominators count the rows and tokens of the whole minibatch, which every rank knows, so the gradient depends on
neither packing nor micro-batches nor the number of ranks. FSDP averages gradients over ranks, but their sum is needed,
so the loss is multiplied by the number of ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from learner.critic import Critic, CriticOutput
from learner.losses import (
    Clip,
    Mean,
    entropy_mean,
    first_tokens,
    kl_loss,
    off_policy,
    row_mean,
    sequence_policy_loss,
    token_policy_loss,
)
from learner.model.policy import Policy
from learner.model.probe import Probe
from learner.model.sharding import end_passes, sync_gradients
from learner.model.trainee import Trainee
from learner.rank_group import RankGroup
from learner.rows.packing import Floats, Pack, Rows, pack_rows, ranges, split
from learner.rows.sequences import runs
from services.config.objectives import LossSection
from services.config.tree import LearnerSection

TOKEN_DUAL_CLIP = 3.0
SUMS: tuple[str, ...] = (
    "loss/policy", "loss/value", "loss/kl", "loss/entropy", "clip_fraction", "ratio_mean", "is_capped_share")
UPDATE_METRICS = frozenset({"loss/policy", "loss/value"})
"""Metrics that are means over the updates of a step. All others are means over its tokens or actions."""
RATIO_METRICS = frozenset({"clip_fraction", "ratio_mean"})
"""Metrics that are means over tokens or actions, whichever the policy loss is a mean over (Mean.over)."""


@dataclass(slots=True, kw_only=True)
class Timer:
    """Measures the seconds of each phase. `device`: the GPU whose work is waited for, if there is one."""

    device: torch.device | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to `name`."""
        start = time.perf_counter()
        try:
            yield
            if self.device is not None and self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # a call returns before its GPU is done
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The result of a step, which is the same on every rank."""

    metrics: dict[str, float]
    advantages: Floats
    """Advantages in the loss, [N]. With a critic, each is the mean over the tokens of its row."""
    logprobs: Floats
    """Logprobs of all responses, concatenated, under the policy before the step."""
    doubt: str
    """By how much learner and sampler differ on tokens of the same weights; "" if rounding explains it."""


@dataclass(slots=True, kw_only=True)
class Minibatch:
    """This rank's packs of one optimizer update. The lists per pack are filled before the first update."""

    packs: list[Pack]
    mean: Mean
    old: list[Tensor] = field(default_factory=list)
    reference: list[Tensor] = field(default_factory=list)
    """The reference's logprobs of each pack; empty without a KL term."""
    critic_outputs: list[CriticOutput] = field(default_factory=list)
    """The critic's output of each pack; empty without a critic."""
    power: float = 0.0
    """p of the mean of an action's token ratios."""

    def share(self, name: str, rows: Rows, count: int) -> float:
        """Returns the weight of this minibatch in a metric of the step, 0 to 1. `count`: the step's minibatches."""
        if name in UPDATE_METRICS:
            return 1 / count
        if name in RATIO_METRICS and self.mean.over == "actions":
            return self.mean.num_rows / len(rows)
        return self.mean.num_tokens / int(rows.response_lengths.sum())

    def token_advantages(self, i: int) -> Tensor:
        """Returns the advantages of pack i, [T]: the critic's, else each row's advantage at all its tokens."""
        return self.critic_outputs[i].advantages if self.critic_outputs else self.packs[i].advantages[self.packs[i].row]

    def row_advantages(self, i: int) -> Tensor:
        """Returns the advantage of each row of pack i, [n]. A critic must give all tokens of a row the same one."""
        p = self.packs[i]
        if not self.critic_outputs:
            return p.advantages
        return self.critic_outputs[i].advantages[first_tokens(p.row, p.num_rows)]


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Policy, frozen reference (None without a KL term) and critic (None if credit needs none) of one rank."""

    policy: Trainee[Policy]
    reference: Callable[[Pack], tuple[Tensor, Tensor]] | None
    critic: Critic | None
    gang: RankGroup
    section: LearnerSection
    whole: bool = False
    """Whether gradients are reduced over the ranks only at the last pack of an update."""
    grid: bool = True
    """Whether attention needs the rows of a pack as a rectangle."""
    probe: Probe | None = None
    """Compares each batch with its sampler before anything is trained on it."""

    @property
    def trainees(self) -> list[Trainee[Any]]:
        """Returns all models that are trained, the policy first."""
        return [self.policy] if self.critic is None else [self.policy, self.critic.trainee]

    def take(self, rows: Rows, timer: Timer, *, power: float = 0.0) -> StepOutput:
        """Updates the policy and the critic, minibatch by minibatch. `power`: p of the mean of an action's ratios.

        grad_norm is the policy's, NaN if an update was skipped. Raises LearnerFault if too many updates in a row are
        skipped, and UserError if the probe finds that the model is not computed correctly.
        """
        if self.probe is not None:
            self.probe.check_packs(self.policy.model, rows)
        with timer.phase("pack"):
            minibatches = self._plan(rows, power)
        with timer.phase("forward_backward"):
            differences = self._recompute(minibatches, rows)
            doubt = "" if self.probe is None else self.probe.check_sampler(
                self.policy.model, rows, [p for minibatch in minibatches for p in minibatch.packs],
                [old for minibatch in minibatches for old in minibatch.old])
            advantages = rows.advantages if self.critic is None else self._row_advantages(minibatches, len(rows))
        totals, norms = dict.fromkeys(SUMS, 0.0), []
        for minibatch in minibatches:
            with timer.phase("forward_backward"):
                for name, value in self._accumulate(minibatch).items():
                    totals[name] += value * minibatch.share(name, rows, len(minibatches))
            with timer.phase("optimizer"):
                norms.append(self.policy.update())
                if self.critic is not None:
                    self.critic.trainee.update()
        metrics = {**self._report(totals, norms, differences), "explained_variance": self._explained(minibatches)}
        return StepOutput(
            metrics=metrics, advantages=advantages, logprobs=self._logprobs(minibatches, rows), doubt=doubt)

    def _plan(self, rows: Rows, power: float) -> list[Minibatch]:
        """Runs of consecutive rows, as equal as can be and at most minibatch_rows long: no small, noisy last one.

        A conversation is never cut, so a run that has one may be longer.
        """
        count = -(-len(rows) // self.section.minibatch_rows)
        minibatches: list[Minibatch] = []
        for indices in runs(rows.sequence, count):
            sequences = np.unique(rows.sequence[indices])
            mine = split(rows.lengths[sequences], self.gang.world, self.section.token_budget,
                         grid=self.grid)[self.gang.rank]
            minibatches.append(Minibatch(
                packs=[pack_rows(rows, sequences[part], self.gang.device, grid=self.grid) for part in mine],
                mean=Mean(self.section.loss.aggregation, len(indices), int(rows.response_lengths[indices].sum())),
                power=power))
        return minibatches

    @torch.no_grad()
    def _recompute(self, minibatches: list[Minibatch], rows: Rows) -> list[Tensor]:
        """Computes everything that uses the weights before the step. Returns |recomputed - sampler's logprobs|."""
        differences: list[Tensor] = []
        for minibatch in minibatches:
            for p in minibatch.packs:
                minibatch.old.append(self.policy.model(p)[0])
                if self.reference is not None:
                    minibatch.reference.append(self.reference(p)[0])
                if p.weight:
                    gap = (minibatch.old[-1] - p.sampler_logprobs).abs()
                    differences.append(gap[torch.isfinite(gap)])
        if isinstance(self.reference, Policy):
            end_passes(self.reference)
        if self.critic is not None:
            outputs = iter(self.critic.outputs([p for minibatch in minibatches for p in minibatch.packs], rows))
            for minibatch in minibatches:
                minibatch.critic_outputs = list(islice(outputs, len(minibatch.packs)))
        return differences

    def _row_advantages(self, minibatches: list[Minibatch], num_rows: int) -> Floats:
        """Returns the mean advantage over the tokens of each row, [N], gathered from all ranks."""
        means = np.zeros(num_rows)
        for minibatch in minibatches:
            for p, output in zip(minibatch.packs, minibatch.critic_outputs, strict=True):
                if p.weight:
                    means[p.members] = row_mean(output.advantages, p.row, p.num_rows).cpu()
        return np.array(self.gang.all_reduce(means.tolist()))

    def _explained(self, minibatches: list[Minibatch]) -> float:
        """Returns the share of the targets' variance that the critic explains; NaN without a critic."""
        return math.nan if self.critic is None else self.critic.explained_variance(
            [p for minibatch in minibatches for p in minibatch.packs],
            [output for minibatch in minibatches for output in minibatch.critic_outputs])

    def _logprobs(self, minibatches: list[Minibatch], rows: Rows) -> Floats:
        """Returns the recomputed logprobs in the order of the rows, gathered from all ranks after the step."""
        starts = np.cumsum(rows.response_lengths) - rows.response_lengths
        found = np.zeros(len(rows.sampler_logprobs))
        for minibatch in minibatches:
            for p, old in zip(minibatch.packs, minibatch.old, strict=True):
                if p.weight:
                    found[ranges(starts[p.members], rows.response_lengths[p.members])] = old.cpu()
        return np.array(self.gang.all_reduce(found.tolist())) if self.gang.world > 1 else found

    def _accumulate(self, minibatch: Minibatch) -> dict[str, float]:
        """Accumulates the gradients of one minibatch. Returns this rank's part of its metrics."""
        section, sums = self.section.loss, dict.fromkeys(SUMS, torch.zeros((), device=self.gang.device))
        num_tokens = minibatch.mean.num_tokens
        for i, p in enumerate(minibatch.packs):
            for trainee in self.trainees:
                sync_gradients(trainee.model, whole=self.whole, last=i == len(minibatch.packs) - 1)
            logp, entropy = self.policy.model(p)
            policy_loss, parts = _policy_loss(section, minibatch, i, logp)
            parts["loss/policy"] = policy_loss
            parts["loss/entropy"] = entropy_mean(entropy, num_tokens=num_tokens)
            loss = policy_loss - section.entropy * parts["loss/entropy"]
            if self.reference is not None:
                parts["loss/kl"] = kl_loss(logp, minibatch.reference[i], num_tokens=num_tokens)
                loss = loss + section.kl * parts["loss/kl"]
            (loss * p.weight * self.gang.world).backward()
            if self.critic is not None:
                parts["loss/value"] = self.critic.loss(p, minibatch.critic_outputs[i], mean=minibatch.mean)
                (parts["loss/value"] * p.weight * self.gang.world).backward()
            for name, value in parts.items():
                sums[name] = sums[name] + value.detach() * p.weight
        return {name: float(value) for name, value in sums.items()}

    def _report(self, totals: dict[str, float], norms: list[float], differences: list[Tensor]) -> dict[str, float]:
        gaps = torch.cat([*differences, torch.zeros(0, device=self.gang.device)])
        summed = self.gang.all_reduce([*totals.values(), float(gaps.sum()), float(len(gaps))])
        (largest,) = self.gang.all_reduce([float(gaps.max()) if len(gaps) else 0.0], ReduceOp.MAX)
        return {
            **dict(zip(totals, summed, strict=False)),
            "grad_norm": float(np.mean(norms)),
            "logprob_difference_mean": summed[-2] / max(summed[-1], 1.0),
            "logprob_difference_max": largest,
        }


def _policy_loss(section: LossSection, minibatch: Minibatch, i: int, logp: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns loss and metrics of pack i. Tokens that another policy sampled are corrected."""
    p = minibatch.packs[i]
    corrected = p.stale[p.row] if section.corrected_rows == "stale" else torch.ones_like(p.row, dtype=torch.bool)
    old, weights = off_policy(
        minibatch.old[i], p.sampler_logprobs, corrected, how=section.correction, cap=section.is_cap)
    clip = Clip(section.clip_low, section.clip_high, dual=TOKEN_DUAL_CLIP)
    if section.ratio == "sequence":
        loss, parts = sequence_policy_loss(
            logp, old, p.row, minibatch.row_advantages(i), clip=clip, mean=minibatch.mean, weights=weights,
            power=minibatch.power)
    else:
        loss, parts = token_policy_loss(
            logp, old, p.row, minibatch.token_advantages(i), clip=clip, mean=minibatch.mean, weights=weights)
    if weights is not None and section.correction == "decoupled":
        parts["is_capped_share"] = (corrected & (weights == section.is_cap)).sum() / minibatch.mean.num_tokens
    return loss, parts
