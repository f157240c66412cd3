"""Measures a cold start on the learner's ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from learner.cold_start.rank_training import imitator, train_on_ranks
from learner.cold_start.sft import Budget, SftProgress
from learner.cold_start.sft_data import TokenRow
from learner.selftest.checks import Checks, planned_bytes
from learner.selftest.scene import config
from learner.selftest.table import Line
from services.amounts import rounded
from services.config.sft import SftSection
from services.units import GIB

UPDATES = 10


def imitation(checks: Checks) -> Iterator[Line]:
    """Imitates two packs of random rows again and again, whose loss has to fall: speed, memory, first and last loss."""
    scene, tokens = checks.scene, checks.scene.packs[0]
    count = max(2, 2 * tokens // scene.row)
    rng, sft = np.random.default_rng(0), SftSection(batch_rows=count, lr=1e-3, prompt_loss=0.0)
    rows = [TokenRow(ids=rng.integers(0, scene.model["vocab_size"], scene.row, dtype=np.int32),
                     prompt_tokens=scene.prompt) for _ in range(count)]
    checks.gauge.fresh()
    learner = imitator(config(tokens, checks.gang.device).model_copy(update={"sft": sft}), checks.folder, checks.gang)
    told: list[SftProgress] = []
    train_on_ranks(learner, rows, sft, budget=Budget(updates=UPDATES), seed=0, report=told.append)
    # Each report is a mean over the updates so far, so the last loss is the difference of two sums.
    first = told[0].loss_response / scene.response
    last = UPDATES * told[-1].loss_response / scene.response - (UPDATES - 1) * told[-2].loss_response / scene.response
    held = checks.gauge.peak()
    yield Line(name="cold start on a rank", aim="a lower loss", passed=last < first,
               found=f"{first:.2f} -> {last:.2f} nats a token, {rounded(count * UPDATES / told[-1].seconds)} rows/s"
               + (f", {held / GIB:.1f} GiB (plan {planned_bytes(learner) / GIB:.1f})" if held is not None else ""))
