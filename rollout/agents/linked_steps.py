"""Which call of an episode continues which: the steps of a conversation, linked by their tokens.

A call continues an earlier one if its prompt begins with exactly the tokens of that call, prompt and answer. Tokens
alone decide. A history that was edited, or that became other tokens on its way through text, continues nothing: its
call starts a row of its own, and is counted as a break.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from services.records import Step


def continued(steps: Sequence[Step], prompt: npt.NDArray[np.int32]) -> int | None:
    """Returns the index of the newest step that a prompt continues, or None."""
    return next((index for index in reversed(range(len(steps))) if steps[index].is_continued_by(prompt)), None)


def without(steps: Sequence[Step], gone: int) -> list[Step]:
    """Returns the steps without one of them. A step that continued it continues nothing."""
    return [msgspec.structs.replace(step, follows=_moved(step.follows, gone), broke=step.broke or step.follows == gone)
            for index, step in enumerate(steps) if index != gone]


def _moved(follows: int | None, gone: int) -> int | None:
    if follows is None or follows == gone:
        return None
    return follows - (follows > gone)

