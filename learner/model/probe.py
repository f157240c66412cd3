"""Compares the learner with the model's own code and with the sampler, and makes canaries (services/weights/canary.py).

    packed equals alone       a few rows of the first batch in one pack, and each by the model's own forward pass
    learner equals sampler    all tokens of each batch that the current weights sampled

A process is refused if the first differs at its first batch, before it has updated anything, or the second at its
first batch with such tokens. At later batches a difference between learner and sampler is only reported.

Both sides may differ only by rounding. Each of a layer's matrix products and sums rounds its result to the relative
precision u of the dtype (2^-24 for float32, 2^-8 for bfloat16), in another order on each side. The errors of about
OPERATIONS of them in each of L layers add up like a random walk, to u * sqrt(OPERATIONS * L) of the spread of the
logits, so

    bound = margin * u * sqrt(OPERATIONS * L + 1) * spread / temperature

in nats, for the mean over the tokens of a sequence (packed) or of the batch (sampler). spread / temperature counts as
at least 1. If a feature of a family is left out, the difference is 10^-3 to 20 nats. In bfloat16 the bound is so wide
that only gross mistakes are found: probe new families in float32 (`python -m lab.bench.models`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from learner.model.policy import Policy, load_policy
from learner.model.sharding import end_passes
from learner.rank_group import RankGroup
from learner.rows.packing import Ints, Pack, Rows, pack_rows
from learner.rows.sequences import last_rows
from services.errors import UserError
from services.weights.canary import PROMPTS, Canary

OPERATIONS = 8
"""Matrix products and sums of one layer: four projections, two of attention, two additions."""
FLOAT32_MARGIN, BFLOAT16_MARGIN = 32, 16
"""Factors of the bound. Gemma 4, whose scores are not scaled, came to 16.4 in float32 on a processor with only AVX2."""
PROBED_ROWS = 4
LONGEST = 4096
"""Longest row, in tokens, for the model's own code. Its attention holds all scores: 5 GB at 7B, and 75 GB for 16k
tokens. If all sequences are longer, the last tokens of one are compared."""
ADVICE = "choose a model of a family that docs/models.md lists"


@dataclass(slots=True, kw_only=True)
class Probe:
    """The probe of one process. A collective: all ranks call both checks, with the same rows."""

    rank_group: RankGroup
    token_budget: int
    half: bool
    """Whether policy or sampler compute in bfloat16."""
    grid: bool = True
    """Whether packs also have a rectangle."""
    _bound: float | None = None
    _done: bool = False

    def check_packs(self, policy: Policy, rows: Rows) -> None:
        """Raises UserError if packed rows differ from single rows by more than rounding explains. Runs once."""
        if self._bound is not None:
            return
        rows, indices = _chosen(rows, self.token_budget)
        with torch.no_grad():
            packed, _ = policy(pack_rows(rows, indices, self.rank_group.device, grid=self.grid))
        alone = self._alone(policy, rows, indices)
        parts = packed.split([len(logprobs) for logprobs in alone])
        gaps = [float((part - own).abs().mean()) for part, own in zip(parts, alone, strict=True)]
        self._refuse(policy, max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap),
                     "a row that is packed with others differs from the same row alone")

    def check_sampler(self, policy: Policy, rows: Rows, packs: Sequence[Pack], recomputed: Sequence[Tensor]) -> str:
        """Compares this learner and the sampler on the tokens that these weights sampled.

        Raises UserError if they disagree at the first batch with such tokens. For later batches it returns the
        mismatch; "" without one.
        """
        if self._bound is None:
            return ""
        gaps = [(logprobs - pack.sampler_logprobs)[~pack.stale[pack.row] & pack.sampler_logprobs.isfinite()].abs()
                for pack, logprobs in zip(packs, recomputed, strict=True) if pack.weight]
        total, count = self.rank_group.all_reduce([float(sum(gap.sum() for gap in gaps)), float(sum(map(len, gaps)))])
        gap = total / count if count else 0.0
        if not self._done and count:
            self._done = True
            self._refuse(policy, gap, "what the learner computes differs from what the sampler reported")
        elif not gap <= self._bound:
            self._alone(policy, *_chosen(rows, self.token_budget))  # training has widened the logits
        return "" if gap <= self._bound else self._describe(gap)

    def _alone(self, policy: Policy, rows: Rows, indices: Ints) -> list[Tensor]:
        """Returns the logprobs of single rows by the model's own forward pass, and sets the bound by their logits."""
        with torch.no_grad():
            alone = [policy(pack_rows(rows, np.array([index]), self.rank_group.device), own=True) for index in indices]
        end_passes(policy)  # an update may follow, after which the gathered weights would be old
        spread = float(torch.cat([spread for _, spread in alone]).mean())
        (widest,) = self.rank_group.all_reduce([spread], ReduceOp.MAX)  # all ranks must come to one result
        self._bound = bound(policy, widest, half=self.half)
        return [logprobs for logprobs, _ in alone]

    def _refuse(self, policy: Policy, gap: float, what: str) -> None:
        assert self._bound is not None
        if not gap <= self._bound:
            raise UserError(f"the family {policy.hf.config.model_type} is not computed rightly: {what} by "
                            f"{self._describe(gap)}", ADVICE)

    def _describe(self, gap: float) -> str:
        return f"{gap:.2g} nats a token, and {'bfloat16' if self.half else 'float32'} explains {self._bound:.2g}"


def bound(policy: Policy, spread: float, *, half: bool) -> float:
    """Returns the largest mean difference of logprobs that rounding explains, in nats. `spread`: of tempered logits."""
    return (BFLOAT16_MARGIN if half else FLOAT32_MARGIN) * rounding(policy, spread, half=half)


def rounding(policy: Policy, spread: float, *, half: bool) -> float:
    """Returns the mean difference of logprobs that rounding should make, in nats. `spread`: of tempered logits."""
    unit = torch.finfo(torch.bfloat16 if half else torch.float32).eps / 2
    layers = policy.hf.config.get_text_config().num_hidden_layers
    return unit * math.sqrt(OPERATIONS * layers + 1) * max(spread, 1.0)


def _chosen(rows: Rows, token_budget: int) -> tuple[Rows, Ints]:
    """Returns rows, and the indices of the sequences to compare: of different lengths up to LONGEST, the longest first,
    as many as fit into one pack."""
    lengths = rows.lengths
    if lengths.min() > LONGEST:
        return _end(rows), np.array([0])
    order = np.argsort(-lengths, kind="stable")[int((lengths > LONGEST).sum()):]
    chosen = order[np.unique(np.linspace(0, len(order) - 1, PROBED_ROWS).round().astype(int))]
    return rows, chosen[:max(1, token_budget // int(lengths[chosen[0]]))]


def _end(rows: Rows) -> Rows:
    """Returns the last LONGEST tokens of the first sequence, with the response of its last row, as one row."""
    last, length = last_rows(rows.sequence)[:1], int(rows.lengths[0])
    responses = np.minimum(rows.response_lengths[last], LONGEST - 1)
    return Rows(
        tokens=rows.tokens[length - LONGEST:length], sequence=np.array([0]), prompt_lengths=LONGEST - responses,
        response_lengths=responses, sampler_logprobs=np.zeros(int(responses[0]), dtype=np.float32),
        advantages=rows.advantages[last], temperatures=rows.temperatures[last], stale=rows.stale[last],
        ends=rows.ends[last])


def policy_canary(policy: Policy, device: torch.device, *, grid: bool, half: bool) -> Canary:
    """Returns the policy's results for the canary's prompts. A collective of all ranks.

    `grid`: whether packs have a rectangle. `half`: whether policy or sampler compute in bfloat16.
    """
    rows = _canary_rows()
    with torch.no_grad():
        logprobs, _ = policy(pack_rows(rows, np.arange(len(PROMPTS)), device, grid=grid))
        _, spread = policy(pack_rows(rows, np.array([0]), device), own=True)
    return Canary(logprobs=logprobs.tolist(), rounding=rounding(policy, float(spread.mean()), half=half))


def folder_canary(folder: Path, *, half: bool) -> Canary:
    """Returns the same for the model in a folder, computed by Hugging Face's own code in float32 on the CPU."""
    policy, rows = load_policy(folder), _canary_rows()
    with torch.no_grad():
        alone = [policy(pack_rows(rows, np.array([k])), own=True) for k in range(len(PROMPTS))]
    logprobs, spreads = (torch.cat(parts) for parts in zip(*alone, strict=True))
    return Canary(logprobs=logprobs.tolist(), rounding=rounding(policy, float(spreads.mean()), half=half))


def _canary_rows() -> Rows:
    """Returns the canary's prompts as rows whose response is all but the first token."""
    count, responses = len(PROMPTS), np.array([len(prompt) - 1 for prompt in PROMPTS])
    return Rows(
        tokens=np.concatenate(PROMPTS).astype(np.int32), sequence=np.arange(count),
        prompt_lengths=np.ones(count, np.int64), response_lengths=responses,
        sampler_logprobs=np.zeros(int(responses.sum()), np.float32), advantages=np.zeros(count),
        temperatures=np.ones(count), stale=np.zeros(count, np.bool_), ends=np.ones(count, np.bool_))
