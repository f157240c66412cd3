"""Next-token training on the learner's ranks: the cold start of models for which one process on a CPU is too slow.

The loss is that of sft.py, with AdamW for all weights, or only for the adapters if the learner trains adapters. Each
row is one sequence of a pack, so sharding, memory and the split over ranks are as in RL. Every rank has all rows and
draws the same batches. Rank 0 only decides by its clock when to stop and when to write a state (states.py), from which
later processes continue; at the end it exports the weights.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from learner.cold_start.sft import RECENT, Budget, Reached, SftProgress, lr_factor, progress_of
from learner.cold_start.sft_data import TokenRow, drawn
from learner.model.sharding import sync_gradients
from learner.rank_group import RankGroup
from learner.rows.batch import rows_to_learn
from learner.rows.packing import Pack, pack_rows
from learner.step import Stepper
from learner.trainer import Learner
from services.config.sections import CreditSection, DistillSection, ImitationSection, SftSection
from services.config.tree import Config

if TYPE_CHECKING:
    from learner.cold_start.states import States  # it logs: the self-test's few packages lack structlog


def imitator(config: Config, model_path: Path, rank_group: RankGroup) -> Learner:
    """Returns a learner without what only RL needs: reference, critic, imitation and teacher.

    Raises UserError as Learner does.
    """
    section = config.learner
    imitation = section.model_copy(update={
        "loss": section.loss.model_copy(update={"kl": 0.0}), "credit": CreditSection(), "lr": config.sft.lr,
        "imitation": ImitationSection(), "distill": DistillSection()})
    return Learner(config.model_copy(update={"learner": imitation}), model_path, rank_group)


def train_on_ranks(learner: Learner, rows: Sequence[TokenRow], section: SftSection, *, budget: Budget, seed: int,
                   report: Callable[[SftProgress], object], states: States | None = None) -> SftProgress:
    """Trains in place, on all ranks at once, on the loss of learner/cold_start/sft.py. Every rank calls `report` after
    each update. Rank 0's clock counts for a budget in minutes. With `states` training continues from the newest state.

    Raises LearnerFault if the gradient is not finite in several updates in a row, ValueError if there are no rows.
    """
    if not rows:
        raise ValueError("no demonstrations to train on")
    stepper, rank_group = learner.stepper, learner.rank_group
    response_tokens = sum(len(row.ids) - row.prompt_tokens for row in rows) / len(rows)
    now = Reached() if states is None else states.load()
    recent = deque(now.recent, maxlen=RECENT)
    batches = islice(drawn(rows, batch_rows=section.batch_rows, seed=seed), now.updates, None)
    start, spent = time.monotonic() - now.seconds, budget.spent(now.updates, now.seconds)
    while spent < 1:
        batch = next(batches)
        for group in stepper.policy.optimizer.param_groups:
            group["lr"] = section.lr * lr_factor(now.updates, spent)
        recent.append(_update(stepper, batch, response_tokens=response_tokens, prompt_loss=section.prompt_loss))
        now = Reached(updates=now.updates + 1, rows=now.rows + len(batch), seconds=time.monotonic() - start,
                      recent=tuple(recent))
        report(progress_of(now, len(rows)))
        due = states is not None and states.due()
        spent, saves = rank_group.all_reduce(
            [0.0, 0.0] if rank_group.rank else [budget.spent(now.updates, now.seconds), due])
        if states is not None and saves and spent < 1:
            start += states.save(now)
    return progress_of(now, len(rows))


def _update(stepper: Stepper, batch: Sequence[TokenRow], *, response_tokens: float,
            prompt_loss: float) -> tuple[float, float]:
    """Takes one update. Returns (mean nats per response, mean nats per prompt token), the second NaN at prompt_loss 0.

    Denominators count the entire batch, which every rank has, as in learner/step.py.
    """
    rank_group, model = stepper.rank_group, stepper.policy.model
    rows = rows_to_learn(batch, prompts=prompt_loss > 0)
    answers = np.array([row.prompt_tokens for row in batch])
    prompt_tokens = int(rows.response_lengths.sum() - (rows.lengths - answers).sum())
    parts = stepper.split(rows, np.arange(len(rows)))[rank_group.rank]
    sums = torch.zeros(2, device=rank_group.device)
    for i, part in enumerate(parts):
        pack = pack_rows(rows, part, rank_group.device, grid=stepper.grid)
        sync_gradients(model, once=stepper.reduces_once, last=i == len(parts) - 1)
        nats = _nats(-model(pack)[0], pack, answers)
        loss = nats[0] / (len(batch) * response_tokens) + prompt_loss * nats[1] / max(1, prompt_tokens)
        (loss * pack.weight * rank_group.world).backward()
        sums += nats.detach() * pack.weight
    stepper.policy.update()
    response, prompt = rank_group.all_reduce(sums.tolist())
    return response / len(batch), prompt / max(1, prompt_tokens) if prompt_loss else math.nan


def _nats(nats: Tensor, pack: Pack, answers: np.ndarray) -> Tensor:
    """Returns the sums of `nats` [T] over the tokens of answers and over those of prompts, [2].

    `answers` [N]: position of the first answer token in the sequence of each row of the batch.
    """
    begins = torch.as_tensor(answers[pack.members], device=nats.device)
    of_answer = pack.positions[0].index_select(0, pack.predicting) + 1 >= begins.index_select(0, pack.row)
    return torch.stack([(nats * of_answer).sum(), (nats * ~of_answer).sum()])
