"""Compares the learner with the model's own code and with the sampler, before the first update of a process.

    packed equals alone       a few rows of the first batch in one pack, and each by the model's own forward pass
    learner equals sampler    all tokens of the first batch that the present weights sampled

Both sides may differ only by rounding. Each of a layer's matrix products and sums rounds its result to the relative
precision u of the dtype (2^-24 for float32, 2^-9 for bfloat16), in another order on each side. The errors of about
OPERATIONS of them in each of L layers add up like a random walk, to u * sqrt(OPERATIONS * L) of the spread of the
logits, so

    bound = SAFETY * u * sqrt(OPERATIONS * L + 1) * spread / temperature

in nats, for the mean over the tokens of a row (packed) or of the batch (sampler). If a feature of a family is left out,
the difference is 10^-3 to 20 nats. In bfloat16 the bound is so wide that only gross mistakes are found: probe new
families in float32 (`python -m deploy.bench.models`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from learner.model import Policy
from learner.packing import Ints, Pack, Rows, pack_rows
from learner.rank_group import RankGroup
from services.errors import UserError

OPERATIONS = 8
"""Matrix products and sums of one layer: four projections, two of attention, two additions."""
SAFETY = 16
PROBED_ROWS = 4
ADVICE = "choose a model of a family that docs/models.md lists"


@dataclass(slots=True, kw_only=True)
class Probe:
    """The probe of one process; each half runs once. A collective: all ranks call both, with the same rows."""

    gang: RankGroup
    token_budget: int
    half: bool
    """Whether policy or sampler compute in bfloat16."""
    grid: bool = True
    """Whether packs also have a rectangle."""
    _bound: float | None = None
    _done: bool = False

    def check_packs(self, policy: Policy, rows: Rows) -> None:
        """Raises UserError if packed rows differ from single rows by more than rounding explains."""
        if self._bound is not None:
            return
        indices = _chosen(rows.lengths, self.token_budget)
        with torch.no_grad():
            packed, _ = policy(pack_rows(rows, indices, self.gang.device, grid=self.grid))
            alone = [policy(pack_rows(rows, np.array([index]), self.gang.device), own=True) for index in indices]
        spread = float(torch.cat([spread for _, spread in alone]).mean())
        self._bound = bound(policy, spread, half=self.half)
        parts = packed.split([len(logprobs) for logprobs, _ in alone])
        gaps = [float((part - own).abs().mean()) for part, (own, _) in zip(parts, alone, strict=True)]
        self._refuse(policy, max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap),
                     "a row that is packed with others differs from the same row alone")

    def check_sampler(self, policy: Policy, packs: Sequence[Pack], recomputed: Sequence[Tensor]) -> None:
        """Raises UserError if this learner and the sampler disagree about tokens that these weights sampled."""
        if self._done or self._bound is None:
            return
        gaps = [(logprobs - pack.sampler_logprobs)[~pack.stale[pack.row]].abs()
                for pack, logprobs in zip(packs, recomputed, strict=True) if pack.weight]
        total, count = self.gang.reduce([float(sum(gap.sum() for gap in gaps)), float(sum(map(len, gaps)))])
        if count:
            self._done = True
            self._refuse(policy, total / count, "what the learner computes differs from what the sampler reported")

    def _refuse(self, policy: Policy, gap: float, what: str) -> None:
        assert self._bound is not None
        if not gap <= self._bound:
            raise UserError(
                f"the family {policy.hf.config.model_type} is not computed rightly: {what} by {gap:.2g} nats a token, "
                f"and {'bfloat16' if self.half else 'float32'} explains {self._bound:.2g}", ADVICE)


def bound(policy: Policy, spread: float, *, half: bool) -> float:
    """The largest mean difference of logprobs in nats that rounding explains. `spread`: of the tempered logits."""
    unit = torch.finfo(torch.bfloat16 if half else torch.float32).eps / 2
    layers = policy.hf.config.get_text_config().num_hidden_layers
    return SAFETY * unit * math.sqrt(OPERATIONS * layers + 1) * max(spread, 1.0)


def _chosen(lengths: Ints, token_budget: int) -> Ints:
    """Returns rows of different lengths, the longest first, that fit into one pack."""
    order = np.argsort(-lengths, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, PROBED_ROWS).round().astype(int))]
    return chosen[:max(1, token_budget // int(lengths[chosen[0]]))]
