"""One learner step over all rows of a batch: every rank is given the same rows and takes its share of them.

Denominators count the rows and tokens of the whole minibatch, which every rank knows, so the gradient depends on
neither packing nor micro-batches nor the number of ranks. FSDP averages gradients over ranks; the loss is multiplied
by their number to make that the sum it has to be.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp
from torch.distributed.tensor import DTensor

from learner.gang import Gang
from learner.losses import Clip, entropy_mean, kl_loss, sequence_policy_loss, token_policy_loss, truncated_weights
from learner.model import Policy
from learner.packing import Pack, Rows, pack, split
from services.config import LearnerSection, LossSection
from services.errors import LearnerFault

TOKEN_DUAL_CLIP = 3.0
MAX_SKIPPED = 3
"""Updates with a non-finite gradient in a row: one is bad luck, more is a broken run."""
SUMS: tuple[str, ...] = ("loss/policy", "loss/kl", "loss/entropy", "clip_fraction", "ratio_mean")


@dataclass(slots=True, kw_only=True)
class Timer:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(slots=True, kw_only=True)
class Minibatch:
    """This rank's packs of one optimizer update; old and reference are filled before the first update."""

    packs: list[Pack]
    num_rows: int
    """Of all ranks."""
    num_tokens: int
    """Response tokens of all ranks."""
    old: list[Tensor] = field(default_factory=list)
    reference: list[Tensor] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Policy, frozen reference (None without a KL term) and optimizer of one rank."""

    policy: Policy
    reference: Policy | None
    optimizer: torch.optim.Optimizer
    gang: Gang
    section: LearnerSection
    skipped_in_a_row: int = 0

    def take(self, rows: Rows, timer: Timer) -> dict[str, float]:
        """Updates the policy minibatch by minibatch; the metrics, the same on every rank.

        grad_norm is NaN where an update was skipped. Raises LearnerFault when MAX_SKIPPED in a row are.
        """
        with timer.phase("pack"):
            minibatches = self._plan(rows)
        with timer.phase("forward_backward"):
            differences = self._recompute(minibatches)
        totals, norms = dict.fromkeys(SUMS, 0.0), []
        for minibatch in minibatches:
            with timer.phase("forward_backward"):
                for name, value in self._accumulate(minibatch).items():
                    totals[name] += value / len(minibatches)
            with timer.phase("optimizer"):
                norms.append(self._update())
        return self._report(totals, norms, differences)

    def _plan(self, rows: Rows) -> list[Minibatch]:
        """Runs of consecutive rows, as equal as can be and at most minibatch_rows long: no small, noisy last one."""
        count = -(-len(rows) // self.section.minibatch_rows)
        minibatches: list[Minibatch] = []
        for indices in np.array_split(np.arange(len(rows)), count):
            mine = split(rows.lengths[indices], self.gang.world, self.section.token_budget)[self.gang.rank]
            minibatches.append(Minibatch(
                packs=[pack(rows, indices[part], self.gang.device) for part in mine],
                num_rows=len(indices), num_tokens=int(rows.response_lengths[indices].sum())))
        return minibatches

    @torch.no_grad()
    def _recompute(self, minibatches: list[Minibatch]) -> list[Tensor]:
        """Old and reference logprobs of all packs under the weights before the step; |recomputed - sampler's|."""
        differences: list[Tensor] = []
        for minibatch in minibatches:
            for p in minibatch.packs:
                minibatch.old.append(self.policy(p)[0])
                if self.reference is not None:
                    minibatch.reference.append(self.reference(p)[0])
                if p.weight:
                    gap = (minibatch.old[-1] - p.sampler_logprobs).abs()
                    differences.append(gap[torch.isfinite(gap)])
        return differences

    def _accumulate(self, minibatch: Minibatch) -> dict[str, float]:
        """Gradients of one minibatch, and this rank's part of its metrics."""
        section, sums = self.section.loss, dict.fromkeys(SUMS, torch.zeros((), device=self.gang.device))
        for i, p in enumerate(minibatch.packs):
            logp, entropy = self.policy(p)
            policy_loss, parts = _policy_loss(section, p, logp, minibatch.old[i], minibatch)
            parts["loss/policy"] = policy_loss
            parts["loss/entropy"] = entropy_mean(entropy, num_tokens=minibatch.num_tokens)
            loss = policy_loss - section.entropy * parts["loss/entropy"]
            if self.reference is not None:
                parts["loss/kl"] = kl_loss(logp, minibatch.reference[i], num_tokens=minibatch.num_tokens)
                loss = loss + section.kl * parts["loss/kl"]
            (loss * p.weight * self.gang.world).backward()
            for name, value in parts.items():
                sums[name] = sums[name] + value.detach() * p.weight
        return {name: float(value) for name, value in sums.items()}

    def _update(self) -> float:
        """Clips, steps, clears; the gradient norm before clipping, NaN where the update was skipped."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.section.grad_clip)
        value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if np.isfinite(value):
            self.optimizer.step()
            self.skipped_in_a_row = 0
        else:
            self.skipped_in_a_row += 1
        self.optimizer.zero_grad()
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise LearnerFault(f"the gradient was not finite in {MAX_SKIPPED} updates in a row")
        return value if np.isfinite(value) else float("nan")

    def _report(self, totals: dict[str, float], norms: list[float], differences: list[Tensor]) -> dict[str, float]:
        gaps = torch.cat([*differences, torch.zeros(0, device=self.gang.device)])
        summed = self.gang.reduce([*totals.values(), float(gaps.sum()), float(len(gaps))])
        (largest,) = self.gang.reduce([float(gaps.max()) if len(gaps) else 0.0], ReduceOp.MAX)
        return {
            **dict(zip(totals, summed, strict=False)),
            "grad_norm": float(np.mean(norms)),
            "logprob_difference_mean": summed[-2] / max(summed[-1], 1.0),
            "logprob_difference_max": largest,
        }


def _policy_loss(section: LossSection, p: Pack, logp: Tensor, old: Tensor,
                 minibatch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Rows that the present policy sampled weigh 1; stale ones are corrected by truncated importance weights."""
    weights = None
    if bool(p.stale.any()):
        corrected = truncated_weights(old, p.sampler_logprobs, p.row, p.num_rows, section.is_cap)
        weights = torch.where(p.stale, corrected, 1.0)
    clip = Clip(section.clip_low, section.clip_high, dual=TOKEN_DUAL_CLIP)
    if section.ratio == "sequence":
        return sequence_policy_loss(logp, old, p.row, p.advantages, clip=clip, num_rows=minibatch.num_rows,
                                    weights=weights)
    return token_policy_loss(logp, old, p.row, p.advantages, clip=clip, num_tokens=minibatch.num_tokens,
                             weights=weights)
