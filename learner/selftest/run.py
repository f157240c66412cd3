"""The self-test of the learner: its checks, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from learner.rank_group import RankGroup
from learner.selftest.candidates import candidates
from learner.selftest.checks import Checks
from learner.selftest.imitation import imitation
from learner.selftest.profile import operations
from learner.selftest.scene import CARD, TINY, Scene, write_model
from learner.selftest.table import Line, attempt

NAMES = ("device", "steps", "numerics", "attention", "lora", "cold-start", "offload", "parking", "candidates",
         "operations", "save")
"""The checks. The last one takes as long as the disk."""


def run(folder: Path, scene: Scene | None = None, *, names: Sequence[str] = NAMES) -> Iterator[Line]:
    """Yields the lines of the table as they are found. Files go into `folder`, an empty one.

    `scene`: the sizes; by default those of a card if there is one, else tiny ones on the CPU. `names`: of the checks
    to run.
    """
    cuda = torch.cuda.is_available()
    gang = RankGroup(0, 1, gpu=cuda)
    try:
        sizes = scene or (CARD if cuda else TINY)
        checks = Checks(sizes, write_model(sizes, folder / "model", gang.device), gang)
        found: dict[str, Callable[[], Iterator[Line]]] = {
            "device": checks.device, "steps": checks.steps, "numerics": checks.numerics, "attention": checks.attention,
            "lora": checks.adapters, "cold-start": partial(imitation, checks), "offload": checks.offload,
            "parking": checks.parking, "candidates": partial(candidates, checks),
            "operations": partial(operations, checks), "save": checks.persistence}
        for name in ("device", *(name for name in names if name != "device")):  # the others compare with its rate
            yield from attempt(name, found[name])
    finally:
        gang.leave()
