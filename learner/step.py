"""Takes one learner step over all rows of a batch. Every rank gets the same rows and computes its share of them.

Denominators count the rows and tokens of the entire minibatch, which every rank knows, so the gradient depends on
neither packing nor micro-batches nor the number of ranks. FSDP averages gradients over ranks, but their sum is needed,
so the loss is multiplied by the number of ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from learner.critic import Critic, CriticOutput
from learner.losses import (
    Clip,
    Mean,
    distilled_advantages,
    entropy_mean,
    first_tokens,
    imitation_loss,
    kl_loss,
    off_policy,
    row_mean,
    sequence_policy_loss,
    token_policy_loss,
)
from learner.model.policy import Policy
from learner.model.probe import Probe
from learner.model.sharding import end_passes, sync_gradients
from learner.model.trained_model import TrainedModel
from learner.rank_group import RankGroup
from learner.rows.packing import Floats, Pack, Rows, cut, pack_rows, split
from learner.rows.sequences import Ints, runs, share_prefixes
from services.config.sections import LossSection
from services.config.tree import LearnerSection

TOKEN_DUAL_CLIP = 3.0
SUMS: tuple[str, ...] = (
    "loss/policy", "loss/value", "loss/kl", "loss/entropy", "clip_fraction", "ratio_mean", "is_capped_share",
    "loss/imitation")
UPDATE_METRICS = frozenset({"loss/policy", "loss/value"})
"""Metrics that are means over the updates of a step. All others are means over its tokens or actions."""
RATIO_METRICS = frozenset({"clip_fraction", "ratio_mean"})
"""Metrics that are means over tokens or actions, whichever the policy loss is a mean over (Mean.over)."""


@dataclass(slots=True, kw_only=True)
class Timer:
    """Measures the seconds of each phase. `device`: the device that computes; a GPU is waited for."""

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
    """Advantages in the loss, less a teacher's signal, [N]. With a critic, each is the mean over its row's tokens."""
    logprobs: Floats
    """Logprobs of all responses, concatenated, under the policy before the step."""
    mismatch: str
    """How much learner and sampler differ on tokens of the same weights; "" if rounding explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """The demonstrations of one learner step."""

    rows: Rows
    """Rows whose responses are the answers to learn."""
    weight: float
    """Weight of their loss, above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """The weights of the two signals in the advantage of a token, in one learner step."""

    weight: float
    """Weight of log π_teacher - log π. With 0 the teacher does not run."""
    credit: float
    """Weight of the estimator's advantage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstratedPart:
    """The demonstrations of one optimizer update."""

    packs: list[Pack]
    """This rank's packs; none on any rank if the update has no demonstrations."""
    num_tokens: int
    """Number of answer tokens, on all ranks."""
    share: float
    """Share of the learner step's answer tokens."""


@dataclass(slots=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer update."""

    packs: list[Pack]
    """This rank's packs."""
    shares: list[Ints]
    """[rank]: the sequences of each rank."""
    mean: Mean
    opens_step: bool
    """Whether it is the first update, so that its own pass gives the logprobs before the step."""
    power: float
    """p of the mean of an action's token ratios."""
    demonstrated: DemonstratedPart

    def share(self, name: str, rows: Rows, count: int) -> float:
        """Returns the weight of this minibatch in a metric of the step, 0 to 1. `count`: the step's minibatches."""
        if name in UPDATE_METRICS:
            return 1 / count
        if name == "loss/imitation":
            return self.demonstrated.share
        if name in RATIO_METRICS and self.mean.over == "actions":
            return self.mean.num_rows / len(rows)
        return self.mean.num_tokens / int(rows.response_lengths.sum())


@dataclass(slots=True, kw_only=True)
class PriorValues:
    """Values under the weights before the step, of all response tokens of the batch, float32 [R] each.

    They are 0 at the tokens of other ranks. Those of a pack are at its `places`.
    """

    logprobs: Tensor
    """The policy's logprobs. The first minibatch fills in its own by its training pass."""
    reference: Tensor | None
    """The reference's logprobs; None without a KL term."""
    critic: CriticOutput | None
    """None without a critic."""
    teacher: Tensor | None
    """The teacher's logprobs; None if it does not run."""
    distillation: Distillation | None
    """None without a teacher."""

    def token_advantages(self, p: Pack) -> Tensor:
        """Returns the advantages of a pack, [T]: the critic's, else each row's advantage at all its tokens, and the
        teacher's signal. Called after the policy's logprobs of the pack are filled in."""
        credit = p.advantages[p.row] if self.critic is None else self.critic.advantages[p.places]
        if self.distillation is None:
            return credit
        policy = self.logprobs[p.places]
        teacher = policy if self.teacher is None else self.teacher[p.places]
        return distilled_advantages(credit, policy, teacher, weight=self.distillation.weight,
                                    credit_weight=self.distillation.credit)

    def row_advantages(self, p: Pack) -> Tensor:
        """Returns the advantage of each row of a pack, [n]. A critic must give all tokens of a row the same one."""
        if self.critic is None:
            return p.advantages
        return self.critic.advantages[p.places[first_tokens(p.row, p.num_rows)]]


class _BatchFigures(NamedTuple):
    """Facts of the batch that the critic's values before the step decide."""

    advantages: Floats
    """[N]: means of the critic's over each row's tokens; those of the estimator without a critic."""
    explained_variance: float
    """NaN without a critic."""


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Policy, frozen reference (None without a KL term), critic (None if credit needs none) and frozen teacher (None
    without distillation) of one rank."""

    policy: TrainedModel[Policy]
    reference: Callable[[Pack], tuple[Tensor, Tensor]] | None
    critic: Critic | None
    teacher: Policy | None = None
    rank_group: RankGroup
    section: LearnerSection
    reduces_once: bool = False
    """Whether gradients are reduced over the ranks only at the last pack of an update."""
    grid: bool = True
    """Whether attention needs the rows of a pack as a rectangle."""
    pair_cost: float = 0.0
    """The policy's Shape.pair_cost, which balances the work of the ranks."""
    probe: Probe | None = None
    """Compares each batch with its sampler before anything is trained on it."""

    @property
    def trained_models(self) -> list[TrainedModel[Any]]:
        """The policy, and the critic if there is one."""
        return [self.policy] if self.critic is None else [self.policy, self.critic.trained_model]

    def take(self, rows: Rows, timer: Timer, *, power: float = 0.0, imitation: Imitation | None = None,
             distillation: Distillation | None = None) -> StepOutput:
        """Updates the policy and the critic, minibatch by minibatch. `power`: p of the mean of an action's ratios.

        `imitation`: demonstrations that the policy learns in the same updates. `distillation`: weights of the teacher's
        signal, which needs one ratio per token.
        The metric grad_norm is the policy's, NaN if an update was skipped. Raises LearnerFault if too many updates in a
        row are skipped, and UserError if the probe finds that the model is not computed correctly.
        """
        if self.probe is not None:
            self.probe.check_packs(self.policy.model, rows)
        with timer.phase("pack"):
            minibatches = self._plan(rows, power, imitation)
            every, later = (self._packs_across(some, rows) for some in (minibatches, minibatches[1:]))
        with timer.phase("forward_backward"):
            prior, figures = self._compute_prior(every, later, rows, distillation)
        totals, norms, mismatch = dict.fromkeys(SUMS, 0.0), [], ""
        for minibatch in minibatches:
            with timer.phase("forward_backward"):
                imitated = 0.0 if imitation is None else self._accumulate_imitation(minibatch, imitation.weight)
                for name, value in (self._accumulate(minibatch, prior) | {"loss/imitation": imitated}).items():
                    totals[name] += value * minibatch.share(name, rows, len(minibatches))
                if minibatch.opens_step and self.probe is not None:  # all logprobs are known, and nothing is updated
                    mismatch = self.probe.check_sampler(
                        self.policy.model, rows, every, [prior.logprobs[p.places] for p in every])
            with timer.phase("optimizer"):
                norms.append(self.policy.update())
                if self.critic is not None:
                    self.critic.trained_model.update()
        metrics = {**self._report(totals, norms, _gaps(every, prior)), "explained_variance": figures.explained_variance,
                   "distill/reverse_kl": self._reverse_kl(every, prior)}
        if imitation is None:
            metrics["loss/imitation"] = math.nan
        return StepOutput(
            metrics=metrics, advantages=figures.advantages, logprobs=self._gather(prior.logprobs), mismatch=mismatch)

    def _plan(self, rows: Rows, power: float, imitation: Imitation | None) -> list[Minibatch]:
        """Splits the rows into consecutive minibatches of nearly equal sizes, so that none is small and noisy.

        They have at most minibatch_rows rows, or more where a cut would divide a conversation.
        """
        consecutive = runs(rows.sequence, -(-len(rows) // self.section.minibatch_rows))
        minibatches: list[Minibatch] = []
        for indices, demonstrated in zip(consecutive, self._demonstrated(imitation, len(consecutive)), strict=True):
            plan = self._share_prefixes(self.split(rows, np.unique(rows.sequence[indices])), rows)
            minibatches.append(Minibatch(
                packs=self._own_packs(plan, rows), shares=[np.concatenate(packs) for packs in plan],
                mean=Mean(self.section.loss.aggregation, len(indices), int(rows.response_lengths[indices].sum())),
                opens_step=not minibatches, power=power, demonstrated=demonstrated))
        return minibatches

    def _demonstrated(self, imitation: Imitation | None, count: int) -> list[DemonstratedPart]:
        """Returns the demonstrations of a step in `count` parts of nearly equal numbers of rows."""
        if imitation is None:
            return [DemonstratedPart(packs=[], num_tokens=0, share=0.0)] * count
        rows, parts = imitation.rows, list[DemonstratedPart]()
        for part in np.array_split(np.arange(len(rows)), count):
            num_tokens = int(rows.response_lengths[part].sum())
            parts.append(DemonstratedPart(
                packs=self._own_packs(self.split(rows, part), rows), num_tokens=num_tokens,
                share=num_tokens / int(rows.response_lengths.sum())))
        return parts

    def split(self, rows: Rows, sequences: Ints) -> list[list[Ints]]:
        """Returns the sequences of each pack [rank][pack], as learner/rows/packing.py splits them."""
        plan = split(rows.lengths[sequences], self.rank_group.world, self.section.token_budget, grid=self.grid,
                     pair_cost=self.pair_cost)
        return [[sequences[pack] for pack in packs] for packs in plan]

    def _share_prefixes(self, plan: list[list[Ints]], rows: Rows) -> list[list[Ints]]:
        return share_prefixes(plan, rows.contents, self.section.token_budget) if self.grid else plan

    def _own_packs(self, plan: list[list[Ints]], rows: Rows) -> list[Pack]:
        """Returns this rank's packs of a plan."""
        return [pack_rows(rows, pack, self.rank_group.device, grid=self.grid) for pack in plan[self.rank_group.rank]]

    def _packs_across(self, minibatches: list[Minibatch], rows: Rows) -> list[Pack]:
        """Returns this rank's sequences of these minibatches in as few packs as the token budget allows.

        Passes without gradients need not end with a minibatch, whose last pack is rarely full: with many ranks all its
        packs may be half empty. In another pack a token's values differ by rounding.
        """
        if len(minibatches) < 2:
            return [p for minibatch in minibatches for p in minibatch.packs]
        shares = [np.concatenate(parts) for parts in zip(*(minibatch.shares for minibatch in minibatches), strict=True)]
        plan = cut(shares, rows.lengths, self.section.token_budget, grid=self.grid)
        return self._own_packs(self._share_prefixes(plan, rows), rows)

    @torch.no_grad()
    def _compute_prior(self, every: list[Pack], later: list[Pack], rows: Rows,
                       distillation: Distillation | None) -> tuple[PriorValues, _BatchFigures]:
        """Computes everything that uses the weights before the step. `every`: packs of all minibatches; `later`: those
        of all but the first, whose own training pass gives its logprobs."""
        def spread(packs: list[Pack], values: Iterable[Tensor]) -> Tensor:
            out = torch.zeros(len(rows.sampler_logprobs), device=self.rank_group.device)
            for p, value in zip(packs, values, strict=True):
                if p.weight:
                    out[p.places] = value
            return out

        logprobs = spread(later, (self.policy.model(p)[0] for p in later))
        reference = critic = teacher = None
        figures = _BatchFigures(advantages=rows.advantages, explained_variance=math.nan)
        if self.reference is not None:
            reference = spread(every, (self.reference(p)[0] for p in every))
        if isinstance(self.reference, Policy):
            end_passes(self.reference)
        if distillation is not None and distillation.weight:
            assert self.teacher is not None
            assert self.section.loss.ratio == "token"
            teacher = spread(every, (self.teacher(p)[0] for p in every))
            end_passes(self.teacher)
        if self.critic is not None:
            outputs = self.critic.outputs(every, rows)
            critic = CriticOutput(*(spread(every, values) for values in zip(*outputs, strict=True)))
            figures = _BatchFigures(advantages=self._row_advantages(every, outputs, len(rows)),
                                    explained_variance=self.critic.explained_variance(every, outputs))
        return PriorValues(logprobs=logprobs, reference=reference, critic=critic, teacher=teacher,
                           distillation=distillation), figures

    def _row_advantages(self, packs: list[Pack], outputs: list[CriticOutput], num_rows: int) -> Floats:
        """Returns the mean advantage over the tokens of each row, [N], gathered from all ranks."""
        means = np.zeros(num_rows)
        for p, output in zip(packs, outputs, strict=True):
            if p.weight:
                means[p.members] = row_mean(output.advantages, p.row, p.num_rows).cpu()
        return np.array(self.rank_group.all_reduce(means.tolist()))

    def _gather(self, values: Tensor) -> Floats:
        """Returns the values of response tokens [R] on all ranks; each rank has computed some of them."""
        mine = values.cpu().numpy().astype(np.float64)
        return np.array(self.rank_group.all_reduce(mine.tolist())) if self.rank_group.world > 1 else mine

    def _accumulate_imitation(self, minibatch: Minibatch, weight: float) -> float:
        """Accumulates the gradient of the imitation loss. Returns this rank's part of the loss, without its weight.

        The packs of the policy loss follow, so gradients that are reduced once are not reduced yet.
        """
        total = torch.zeros((), device=self.rank_group.device)
        for p in minibatch.demonstrated.packs:
            sync_gradients(self.policy.model, once=self.reduces_once, last=False)
            loss = imitation_loss(self.policy.model(p)[0], num_tokens=minibatch.demonstrated.num_tokens)
            (weight * loss * p.weight * self.rank_group.world).backward()
            total += loss.detach() * p.weight
        return float(total)

    def _accumulate(self, minibatch: Minibatch, prior: PriorValues) -> dict[str, float]:
        """Accumulates the gradients of one minibatch. Returns this rank's part of its metrics."""
        section, sums = self.section.loss, dict.fromkeys(SUMS, torch.zeros((), device=self.rank_group.device))
        num_tokens = minibatch.mean.num_tokens
        for i, p in enumerate(minibatch.packs):
            for each in self.trained_models:
                sync_gradients(each.model, once=self.reduces_once, last=i == len(minibatch.packs) - 1)
            logp, entropy = self.policy.model(p)
            if minibatch.opens_step and p.weight:
                prior.logprobs[p.places] = logp.detach()
            policy_loss, parts = _policy_loss(section, p, logp, prior, minibatch)
            parts["loss/policy"] = policy_loss
            parts["loss/entropy"] = entropy_mean(entropy, num_tokens=num_tokens)
            loss = policy_loss - section.entropy * parts["loss/entropy"]
            if prior.reference is not None:
                parts["loss/kl"] = kl_loss(logp, prior.reference[p.places], num_tokens=num_tokens)
                loss = loss + section.kl * parts["loss/kl"]
            (loss * p.weight * self.rank_group.world).backward()
            if self.critic is not None and prior.critic is not None:
                before = CriticOutput(*(values[p.places] for values in prior.critic))
                parts["loss/value"] = self.critic.loss(p, before, mean=minibatch.mean)
                (parts["loss/value"] * p.weight * self.rank_group.world).backward()
            for name, value in parts.items():
                sums[name] = sums[name] + value.detach() * p.weight
        return {name: float(value) for name, value in sums.items()}

    def _report(self, totals: dict[str, float], norms: list[float], differences: list[Tensor]) -> dict[str, float]:
        gaps = torch.cat([*differences, torch.zeros(0, device=self.rank_group.device)])
        summed = self.rank_group.all_reduce([*totals.values(), float(gaps.sum()), float(len(gaps))])
        (largest,) = self.rank_group.all_reduce([float(gaps.max()) if len(gaps) else 0.0], ReduceOp.MAX)
        return {
            **dict(zip(totals, summed, strict=False)),
            "grad_norm": float(np.mean(norms)),
            "logprob_difference_mean": summed[-2] / max(summed[-1], 1.0),
            "logprob_difference_max": largest,
        }

    def _reverse_kl(self, packs: list[Pack], prior: PriorValues) -> float:
        """Returns the mean of log π - log π_teacher over the sampled tokens of all ranks; NaN without the teacher."""
        if prior.teacher is None:
            return math.nan
        places = torch.cat([p.places for p in packs if p.weight] or [torch.zeros(0, dtype=torch.int64)])
        places = places.to(self.rank_group.device)
        total, count = self.rank_group.all_reduce([
            float((prior.logprobs[places] - prior.teacher[places]).double().sum()), float(len(places))])
        return total / count


def _gaps(packs: list[Pack], prior: PriorValues) -> list[Tensor]:
    """Returns |learner's - sampler's logprobs| of each pack of this rank, where both are finite."""
    gaps = [(prior.logprobs[p.places] - p.sampler_logprobs).abs() for p in packs if p.weight]
    return [gap[torch.isfinite(gap)] for gap in gaps]


def _policy_loss(section: LossSection, p: Pack, logp: Tensor, prior: PriorValues,
                 minibatch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns loss and metrics of a pack. Corrects the tokens of the rows that loss.corrected_rows names."""
    corrected = p.stale[p.row] if section.corrected_rows == "stale" else torch.ones_like(p.row, dtype=torch.bool)
    old, weights = off_policy(
        prior.logprobs[p.places], p.sampler_logprobs, corrected, how=section.correction, cap=section.is_cap)
    clip = Clip(section.clip_low, section.clip_high, dual=TOKEN_DUAL_CLIP)
    if section.ratio == "sequence":
        loss, parts = sequence_policy_loss(
            logp, old, p.row, prior.row_advantages(p), clip=clip, mean=minibatch.mean, weights=weights,
            power=minibatch.power)
    else:
        loss, parts = token_policy_loss(
            logp, old, p.row, prior.token_advantages(p), clip=clip, mean=minibatch.mean, weights=weights)
    if weights is not None and section.correction == "decoupled":
        parts["is_capped_share"] = (corrected & (weights == section.is_cap)).sum() / minibatch.mean.num_tokens
    return loss, parts
