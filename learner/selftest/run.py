"""The self-test of the learner: its checks, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from learner.cold_start.rank_training import imitator, train_on_ranks
from learner.cold_start.sft import Budget, SftProgress
from learner.cold_start.sft_data import TokenRow
from learner.rank_group import RankGroup
from learner.selftest.candidates import candidates
from learner.selftest.checks import Checks, planned_bytes
from learner.selftest.scene import GPU, TINY, Scene, config, groups, write_model
from learner.selftest.table import Line, attempt
from services.amounts import rounded
from services.config.sft import SftSection
from services.units import GIB

SHOWN = 12
"""Number of operations that are shown, those that take most."""


def operations(checks: Checks) -> Iterator[Line]:
    """Profiles one step after another one. An operation's time is that of the kernels that it starts itself."""
    tokens, cuda = checks.scene.packs[-1], checks.gauge.cuda
    learner, batch = checks.learner(tokens), groups(checks.scene, checks.step_rows(tokens))
    learner.train(batch)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as found:
        start = checks.gauge.now()
        learner.train(batch)
        seconds = checks.gauge.now() - start
    times: dict[str, float] = {
        event.key: _microseconds(event, cuda=cuda) for event in found.key_averages()
        if event.device_type.name == "CPU"}
    yield Line(name="a step under the profiler", found=f"{seconds:.2f} s, the device busy for "
                                                       f"{sum(times.values()) / 1e4 / seconds:.0f}%")
    for name, time in sorted(times.items(), key=lambda item: -item[1])[:SHOWN]:
        yield Line(name=f"  {name[:38]}", found=f"{time / 1e3:.1f} ms, {time / 1e4 / seconds:.1f}%")


def _microseconds(event: Any, *, cuda: bool) -> float:
    return event.self_device_time_total if cuda else event.self_cpu_time_total


UPDATES = 10


def imitation(checks: Checks) -> Iterator[Line]:
    """Imitates two packs of random rows again and again, whose loss has to fall: speed, memory, first and last loss."""
    scene, tokens = checks.scene, checks.scene.packs[0]
    count = max(2, 2 * tokens // scene.row)
    rng, sft = np.random.default_rng(0), SftSection(batch_rows=count, lr=1e-3, prompt_loss=0.0)
    rows = [TokenRow(ids=rng.integers(0, scene.model["vocab_size"], scene.row, dtype=np.int32),
                     prompt_tokens=scene.prompt) for _ in range(count)]
    checks.gauge.fresh()
    learner = imitator(config(tokens, checks.rank_group.device).model_copy(update={"sft": sft}), checks.folder,
                       checks.rank_group)
    told: list[SftProgress] = []
    train_on_ranks(learner, rows, sft, budget=Budget(updates=UPDATES), seed=0, report=told.append)
    # Each report is a mean over the updates so far, so the last loss is the difference of two sums.
    first = told[0].loss_response / scene.response
    last = UPDATES * told[-1].loss_response / scene.response - (UPDATES - 1) * told[-2].loss_response / scene.response
    held = checks.gauge.peak()
    yield Line(name="cold start on a rank", aim="a lower loss", passed=last < first,
               found=f"{first:.2f} -> {last:.2f} nats a token, {rounded(count * UPDATES / told[-1].seconds)} rows/s"
               + (f", {held / GIB:.1f} GiB (plan {planned_bytes(learner) / GIB:.1f})" if held is not None else ""))


CHECKS: dict[str, Callable[[Checks], Iterator[Line]]] = {
    "device": Checks.device, "steps": Checks.steps, "numerics": Checks.numerics, "attention": Checks.attention,
    "compile": Checks.compiled, "lora": Checks.adapters, "cold-start": imitation,
    "offload": Checks.offload, "parking": Checks.parking, "candidates": candidates, "operations": operations,
    "save": Checks.persistence}
"""The checks in their order. The first one measures the rate that others compare with; the last one takes as long as
the disk."""


def run(folder: Path, scene: Scene | None = None, *, names: Iterable[str] = CHECKS) -> Iterator[Line]:
    """Yields the lines of the table as they are found. Files go into `folder`, an empty one.

    `scene`: the sizes; by default those of a GPU if there is one, else tiny ones on the CPU. `names`: the checks
    that run beside the first one.
    """
    cuda = torch.cuda.is_available()
    rank_group = RankGroup(0, 1, gpu=cuda)
    try:
        sizes = scene or (GPU if cuda else TINY)
        checks = Checks(sizes, write_model(sizes, folder / "model", rank_group.device), rank_group)
        for name in dict.fromkeys(("device", *names)):
            yield from attempt(name, partial(CHECKS[name], checks))
    finally:
        rank_group.leave()
