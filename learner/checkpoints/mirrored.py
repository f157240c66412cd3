"""The record of what an object store has of a run's folder. The driver writes it, and the learner reads it.

An episode is retired from Redis only after the checkpoint that trained on it is in the object store too. So the loss of
the run's folder costs no more than the loss of the learner: the steps after that checkpoint are replayed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.files import read_json

MIRROR = "mirror.json"
"""File of the record in the run's folder."""


class MirrorState(msgspec.Struct, kw_only=True):
    """Content of mirror.json."""

    format: int = 1
    url: str
    """The run's folder in the object store."""
    owner: str
    """Names this copy of the run. Another copy that continues the run writes another name into the object store."""
    step: int = 0
    """Learner step of the newest checkpoint that is whole in the object store; 0 before the first."""
    files: dict[str, tuple[int, int]] = {}
    """Path below the run's folder -> size and modification time in ns of the file that was uploaded last."""


def mirrored_step(run_dir: Path) -> int:
    """Returns the step of the newest checkpoint that is whole in the object store; 0 before the first.

    While the run's folder is away, nothing is known to be there: 0.
    """
    try:
        return read_json(run_dir / MIRROR, MirrorState).step
    except OSError:
        return 0
