"""The record of what an object store has of a run's folder. The driver writes it, and the learner waits for it.

An episode is retired from Redis only after the checkpoint that trained on it is in the object store too. So the loss of
the run's folder costs no more than the loss of the learner: the steps after that checkpoint are replayed.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from services.errors import DeadlineExceeded
from services.files import read_json

MIRROR = "mirror.json"
"""File of the record in the run's folder."""
LOOK_S = 0.2


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


def wait_mirrored(run_dir: Path, step: int, *, seconds: float) -> None:
    """Returns once the checkpoint of `step` is in the object store. Raises DeadlineExceeded.

    While the run's folder is away, nothing is known to be there.
    """
    deadline = time.monotonic() + seconds
    while _mirrored_step(run_dir) < step:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"the checkpoint of step {step} did not reach the object store in {seconds:g} s "
                                   "(learner.collective_s)")
        time.sleep(LOOK_S)


def _mirrored_step(run_dir: Path) -> int:
    try:
        return read_json(run_dir / MIRROR, MirrorState).step
    except OSError:
        return -1
