"""Next-token training on demonstrations, the cold start, in one process. Its budget is wall time or updates.

Three things make a tiny model learn to copy within minutes: small batches (many updates), a loss on the prompt too (its
many repeats train induction heads), and orthogonalised momentum for the matrices (Muon: Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from learner.cold_start.sft_data import IGNORE, Batch, TokenRow, drawn, padded, within_budget
from services.config.tree import SftSection
from services.errors import LearnerFault

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

MUON_LR = 0.02
"""Step size of the orthogonalised updates. It fits all models, because these updates do not scale with the gradient."""
WARMUP_UPDATES = 50
FINAL_LR = 0.05
"""Share of the learning rate that is left at the end of the cosine."""
REPORT_SECONDS = 10.0
"""Least seconds between two reports of the progress in `train`."""
RECENT = 100
"""Number of updates over which the reported losses are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftProgress:
    """Progress of the training. Losses are means over the last RECENT updates."""

    updates: int
    rows: int
    epochs: float
    seconds: float
    loss_response: float
    """Nats per response."""
    loss_prompt: float | None
    """Nats per prompt token. None if prompts are not learned."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the values that sft.json records."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The end of the training: after `minutes`, or after exactly `updates` if that is set (reproducible)."""

    minutes: float = math.inf
    updates: int | None = None

    def spent(self, updates: int, seconds: float) -> float:
        """Returns the share of the budget that is used, in [0, 1]."""
        share = updates / self.updates if self.updates is not None else seconds / (60 * self.minutes)
        return min(1.0, share)


@dataclass(frozen=True, slots=True)
class Lesson:
    """The rows to learn, the budget, and the seed of their order."""

    rows: Sequence[TokenRow]
    budget: Budget
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The task of a cold start, the same for all learner ranks."""

    model: Path
    """The folder of the initial model."""
    out: Path
    """The folder of the new model."""
    work: Path
    """The folder of the rows, the states and rank 0's progress."""
    budget: Budget
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The position of a training: what it needs to continue, apart from weights and moments."""

    updates: int = 0
    rows: int = 0
    seconds: float = 0.0
    """Time of training, without that of writing states."""
    recent: Sequence[tuple[float, float]] = ()
    """Losses (response, prompt) of the last updates, with NaN for prompts that are not learned."""


def lr_factor(updates: int, spent: float) -> float:
    """Returns the factor of the learning rate: a linear warm-up over 50 updates times a cosine from 1 to FINAL_LR."""
    cosine = FINAL_LR + (1 - FINAL_LR) * (1 + math.cos(math.pi * spent)) / 2
    return min(1.0, (updates + 1) / WARMUP_UPDATES) * cosine


def optimizers(model: PreTrainedModel, *, lr: float, muon: bool) -> list[torch.optim.Optimizer]:
    """Returns AdamW for all weights; with `muon`, Muon for matrices, AdamW for embeddings, head, norms and biases."""
    import torch

    from learner.cold_start.muon import Muon

    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matrices = [w for name, w in named if muon and w.ndim == 2 and "embed" not in name and "lm_head" not in name]
    chosen = {id(weight) for weight in matrices}
    rest = [weight for _, weight in named if id(weight) not in chosen]
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.99), weight_decay=0.01)]
    if matrices:
        made.append(Muon(matrices, lr=MUON_LR, weight_decay=0.01))
    return made


def nats(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the sums of nats over the tokens of responses and over those of prompts, differentiable.

    A large vocabulary's logits [B x T, V] do not fit into memory. They are then computed only for the tokens that
    count, in slices that the backward pass recomputes.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    from learner.model.family import logits_function
    from learner.model.memory import LOGITS_AT_ONCE

    logits, targets = logits_function(model), torch.from_numpy(batch.targets).flatten()
    is_response = torch.from_numpy(batch.is_response).flatten()
    hidden = model.base_model(input_ids=torch.from_numpy(batch.ids), use_cache=False).last_hidden_state.flatten(0, 1)
    step = max(1, LOGITS_AT_ONCE // cast("torch.nn.Linear", model.get_output_embeddings()).out_features)

    def of_slice(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits(hidden).float(), targets, ignore_index=IGNORE, reduction="none")

    if len(targets) <= step:  # with other slices the products would differ in the last digits
        each = of_slice(hidden, targets)
    else:
        places = (targets != IGNORE).nonzero()[:, 0]
        is_response = is_response[places]
        each = torch.cat([checkpoint(of_slice, hidden[some], targets[some], use_reentrant=False)
                          for some in places.split(step)])
    return (each * is_response).sum(), (each * ~is_response).sum()


def train(
    model: PreTrainedModel, lesson: Lesson, section: SftSection, *, pad_id: int, token_budget: int, muon: bool = True,
    report: Callable[[SftProgress], object] | None = None,
) -> SftProgress:
    """Trains in place on mean nats per response token + section.prompt_loss x mean nats per prompt token.

    A pass has at most `token_budget` tokens with padding, or one row. Raises LearnerFault if the loss becomes infinite
    or NaN, ValueError if there are no rows.
    """
    rows, budget = lesson.rows, lesson.budget
    if not rows:
        raise ValueError("no demonstrations to train on")
    if not section.prompt_loss:
        rows = [replace(row, learn_prompt=False) for row in rows]
    response_tokens = sum(len(row.ids) - row.prompt_tokens for row in rows) / len(rows)
    made = optimizers(model, lr=section.lr, muon=muon)
    base = [[group["lr"] for group in optimizer.param_groups] for optimizer in made]
    recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
    stream = drawn(rows, batch_rows=section.batch_rows, seed=lesson.seed)
    start = reported = time.monotonic()
    updates = trained = 0
    model.train()
    while (spent := budget.spent(updates, time.monotonic() - start)) < 1:
        batch = next(stream)
        passes = [padded(part, pad_id) for part in within_budget(batch, token_budget)]
        response, prompt = _accumulate(model, passes, response_tokens=response_tokens, prompt_loss=section.prompt_loss)
        _update(made, base, lr_factor(updates, spent))
        updates, trained = updates + 1, trained + len(batch)
        recent.append((response, prompt if section.prompt_loss else math.nan))
        if report is not None and time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report(progress_of(
                Reached(updates=updates, rows=trained, seconds=reported - start, recent=recent), len(rows)))
    model.eval()
    return progress_of(
        Reached(updates=updates, rows=trained, seconds=time.monotonic() - start, recent=recent), len(rows))


def _accumulate(model: PreTrainedModel, passes: Sequence[Batch], *, response_tokens: float,
                prompt_loss: float) -> tuple[float, float]:
    """Accumulates the gradients of one batch. Returns (mean nats per response, mean nats per prompt token).

    Denominators count the entire batch, so the gradient does not depend on the passes. Raises LearnerFault if the loss
    is not finite.
    """
    rows = sum(len(batch.ids) for batch in passes)
    prompt_tokens = max(1, sum(int((batch.targets != IGNORE).sum() - batch.is_response.sum()) for batch in passes))
    sums = [0.0, 0.0]
    for batch in passes:
        response, prompt = nats(model, batch)
        response, prompt = response / rows, prompt / prompt_tokens
        loss = response / response_tokens + prompt_loss * prompt
        if not math.isfinite(value := loss.item()):
            raise LearnerFault(f"the cold start's loss became {value}")
        loss.backward()
        sums = [sums[0] + response.item(), sums[1] + prompt.item()]
    return sums[0], sums[1]


def _update(made: list[torch.optim.Optimizer], base: list[list[float]], factor: float) -> None:
    for optimizer, rates in zip(made, base, strict=True):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def progress_of(now: Reached, total: int) -> SftProgress:
    """Returns the progress of a training on `total` different rows."""
    response, prompt = (sum(values) / len(values) for values in zip(*now.recent, strict=True))
    return SftProgress(updates=now.updates, rows=now.rows, epochs=now.rows / total, seconds=now.seconds,
                       loss_response=response, loss_prompt=None if math.isnan(prompt) else prompt)
