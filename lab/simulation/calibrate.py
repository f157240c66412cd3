"""Measures the times of a run's parts on what it has left behind: metrics.jsonl and the archive of its episodes.

At staleness 0 the learner waits while the workers play, so its wait is the time of one round of episodes. Episodes that
play together take their turns in rounds. A round of n turns takes turn_alone + n turn_share, so a wait takes

    rounds · turn_alone + turns · turn_share,    rounds = max(longest episode, turns / slots),

of the worker with the most turns. Both times are the least-squares solution over all steps that is not negative, and
so are the two times of the learner: learner_step + turns / ranks · learner_turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from deploy.runs.configs import light_config
from deploy.runs.folder import RunFolder
from deploy.runs.history import RunHistory, read_columns
from lab.simulation.figures import Figures
from services.errors import UserError
from services.store.archive import FILE_NAME

FEWEST = 3
"""Learner steps from which two times can be told apart."""
LEAST_SPREAD = 0.02
"""Relative spread of the episodes that play at once, below which two times cannot be told apart."""
LONGEST_S = 1e6
TRAINING = ("credit", "pack", "forward_backward", "optimizer")
REDIS_TURN = 1 / 28_000
"""Seconds of Redis for one turn of 2,000 tokens: `python -m lab.bench store`, lab/records/reproduction.md."""


class StepTimes(NamedTuple):
    """The times and the episodes of one learner step."""

    lengths: list[int]
    """Turns of each episode."""
    rounds: float
    turns: float
    """Turns of the worker with the most."""
    wait: float
    turns_of_a_rank: float
    training: float
    publish: float


def calibrate(folders: Sequence[RunFolder]) -> Figures:
    """Returns the figures of one run or several. Raises UserError if they do not show the times of their parts."""
    samples, checkpoints = [], []
    for folder in folders:
        found, written = _samples(folder)
        samples += found
        checkpoints += written
    names = " and ".join(str(folder.path) for folder in folders)
    if len(samples) < FEWEST:
        raise UserError(f"{names}: {len(samples)} learner steps show the times of parts, and {FEWEST} are needed",
                        "give a longer run: steps after an evaluation, and the first one, do not count")
    ratios = np.array([one.turns / one.rounds for one in samples])
    if ratios.std() < LEAST_SPREAD * ratios.mean():
        raise UserError(f"{names}: all learner steps played as many episodes at once, so a turn alone is not told from "
                        "its share", "add --from of a run with other rollout.slots")
    alone, share = two_times([one.rounds for one in samples], [one.turns for one in samples],
                             [one.wait for one in samples])
    fixed, turn = two_times([1.0] * len(samples), [one.turns_of_a_rank for one in samples],
                            [one.training for one in samples])
    return Figures(
        turns=tuple(length for one in samples for length in one.lengths), turn_alone=alone, turn_share=share,
        learner_step=fixed, learner_turn=turn, publish=float(np.median([one.publish for one in samples])),
        checkpoint=float(np.mean(checkpoints)) if checkpoints else 0.0, store_turn=REDIS_TURN)


def _samples(folder: RunFolder) -> tuple[list[StepTimes], list[float]]:
    """Returns what the steps of a run show, and the times of its checkpoints.

    The first step waits for the start of the samplers, and beside an evaluation workers play other episodes too.
    """
    config = light_config(folder.config_file)
    if config.learner.staleness:
        raise UserError(f"{folder.path} has learner.staleness={config.learner.staleness}, so its waits are not the "
                        "time of its episodes", "give a run with learner.staleness=0")
    samples, checkpoints, played = [], [], _played(folder)
    for row in RunHistory(folder).metrics:
        before = row["step"] - 1
        if not all(_is_time(row[f"seconds/{phase}"]) for phase in (*TRAINING, "wait", "publish", "checkpoint")):
            continue  # a line of another version, or a damaged one
        if before and before % config.checkpoint.every == 0:
            checkpoints.append(row["seconds/checkpoint"])  # it is in the row of the step after it
        if not before or config.evaluates(before) or row["step"] not in played:
            continue
        lengths, most = played[row["step"]]
        samples.append(StepTimes(
            lengths, max(*lengths, most / config.rollout.slots), most, row["seconds/wait"],
            sum(lengths) / config.learner.ranks, sum(row[f"seconds/{phase}"] for phase in TRAINING),
            row["seconds/publish"]))
    return samples, checkpoints


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < LONGEST_S


def two_times(first: Sequence[float], second: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Returns a, b ≥ 0 that make `a first + b second` nearest to `seconds` in the sum of squares."""
    columns, wanted = np.array([first, second], dtype=float), np.array(seconds, dtype=float)
    both = np.linalg.lstsq(columns.T, wanted, rcond=None)[0]
    alone = np.maximum(columns @ wanted / (columns**2).sum(axis=1), 0.0)
    # The best point of the quarter plane is the free optimum if that lies in it, else one on its edges.
    points = [(alone[0], 0.0), (0.0, alone[1])] + ([tuple(both)] if (both >= 0).all() else [])
    a, b = min(points, key=lambda point: float(((np.array(point) @ columns - wanted) ** 2).sum()))
    return float(a), float(b)


def _played(folder: RunFolder) -> dict[int, tuple[list[int], int]]:
    """Returns for each learner step the turns of its episodes, and those of the worker with the most."""
    files = {int(found[1]): path for path in (folder.path / "episodes").glob("*.parquet")
             if (found := FILE_NAME.fullmatch(path.name)) and not found[2]}
    played: dict[int, tuple[list[int], int]] = {}
    for step, path in sorted(files.items()):
        tables, _ = read_columns([path], ["group", "k", "worker"])
        if not tables or not tables[0].num_rows:
            continue
        lengths: Counter[tuple[str, int]] = Counter()
        by_worker: Counter[str] = Counter()
        for row in tables[0].to_pylist():
            lengths[row["group"], row["k"]] += 1
            by_worker[row["worker"]] += 1
        played[step] = list(lengths.values()), max(by_worker.values())
    return played
