"""The self-test of the learner: all its checks, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from learner.rank_group import RankGroup
from learner.selftest.candidates import candidates
from learner.selftest.checks import Checks
from learner.selftest.imitation import imitation
from learner.selftest.scene import CARD, TINY, Scene, write_model
from learner.selftest.table import Line, attempt


def run(folder: Path, scene: Scene | None = None) -> Iterator[Line]:
    """Yields the lines of the table as they are found. Files go into `folder`, an empty one.

    `scene`: the sizes; by default those of a card if there is one, else tiny ones on the CPU.
    """
    cuda = torch.cuda.is_available()
    gang = RankGroup(0, 1, gpu=cuda)
    try:
        sizes = scene or (CARD if cuda else TINY)
        checks = Checks(sizes, write_model(sizes, folder / "model", gang.device), gang)
        for name, check in (
            ("device", checks.device), ("training steps", checks.steps), ("numerics", checks.numerics),
            ("attention kernels", checks.attention), ("save, load, gather", checks.persistence),
            ("LoRA", checks.adapters), ("moments on the host", checks.offload),
            ("states in host memory", checks.parking), ("cold start", partial(imitation, checks)),
            ("candidates", partial(candidates, checks)),
        ):
            yield from attempt(name, check)
    finally:
        gang.leave()
