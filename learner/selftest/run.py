"""The self-test of the learner: its checks, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch

from learner.rank_group import RankGroup
from learner.selftest.candidates import candidates
from learner.selftest.checks import Checks
from learner.selftest.imitation import imitation
from learner.selftest.operations import operations
from learner.selftest.scene import GPU, TINY, Scene, write_model
from learner.selftest.table import Line, attempt

CHECKS: dict[str, Callable[[Checks], Iterator[Line]]] = {
    "device": Checks.device, "steps": Checks.steps, "numerics": Checks.numerics, "attention": Checks.attention,
    "lora": Checks.adapters, "cold-start": imitation, "offload": Checks.offload, "parking": Checks.parking,
    "candidates": candidates, "operations": operations, "save": Checks.persistence}
"""The checks in their order. The first one measures the rate that others compare with; the last one takes as long as
the disk."""


def run(folder: Path, scene: Scene | None = None, *, names: Iterable[str] = CHECKS) -> Iterator[Line]:
    """Yields the lines of the table as they are found. Files go into `folder`, an empty one.

    `scene`: the sizes; by default those of a GPU if there is one, else tiny ones on the CPU. `names`: the checks
    that run beside the first one.
    """
    cuda = torch.cuda.is_available()
    gang = RankGroup(0, 1, gpu=cuda)
    try:
        sizes = scene or (GPU if cuda else TINY)
        checks = Checks(sizes, write_model(sizes, folder / "model", gang.device), gang)
        for name in dict.fromkeys(("device", *names)):
            yield from attempt(name, partial(CHECKS[name], checks))
    finally:
        gang.leave()
