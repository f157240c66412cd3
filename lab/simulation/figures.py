"""The times of the parts of a run from which the simulator predicts the whole. Read from JSON, or measured on a run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.errors import UserError
from services.files import NOT_JSON, read_bounded

MOST_BYTES = 1 << 24


class Figures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All times are in seconds. A part whose time is 0 costs nothing."""

    turns: tuple[int, ...]
    """Lengths of episodes in turns. Episodes are drawn from them."""
    turn_alone: float
    """One turn of the only episode of a worker: prompt, sampling, environment."""
    turn_share: float
    """Time that each episode which a worker plays at once, the turn's own included, adds to a turn."""
    env_step: float = 0.0
    """Time of an environment server for one step. It carries out one step at a time."""
    learner_step: float
    """Part of a learner step that does not depend on the number of turns."""
    learner_turn: float
    """Time of one rank for one turn."""
    publish: float = 0.0
    """From the end of a learner step until its weights are published."""
    update: float = 0.0
    """Pause of a worker that loads new weights."""
    checkpoint: float = 0.0
    """Pause of the learner for one checkpoint."""
    store_turn: float = 0.0
    """Time of Redis for one turn of a finished episode."""
    control_group: float = 0.0
    """Time of the controller for one group, from its issue to its end."""


def read_figures(path: Path) -> Figures:
    """Returns the figures in a file. Raises UserError if it is not JSON of this form, or a number makes no sense."""
    try:
        figures = msgspec.json.decode(read_bounded(path, MOST_BYTES), type=Figures)
    except (*NOT_JSON, OSError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} has no figures ({said})",
                        "make one by `python -m lab.simulation --from RUN --json`, whose `figures` it has") from error
    numbers = [getattr(figures, name) for name in figures.__struct_fields__ if name != "turns"]
    if not figures.turns or min(figures.turns) < 1 or min(numbers) < 0:
        raise UserError(f"{path} has a negative time or an episode without turns", "correct the number")
    return figures
