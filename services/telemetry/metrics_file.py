"""metrics.jsonl and evaluations.jsonl: the keys with their meanings, reading and writing. Light.

The list of keys of metrics.jsonl is frozen, because other programs read the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from services.amounts import GIB
from services.files import NOT_JSON, read_bounded, write_whole
from services.outages import retry_files
from services.telemetry.catalogue import PHASES
from services.telemetry.task_types import ENV_PREFIX, PREFIX

_PHASE_TEXTS: Mapping[str, str] = {
    "wait": "waiting for the groups of the step",
    "credit": "making advantages and rows of the groups",
    "pack": "packing rows into passes",
    "forward_backward": "forward and backward passes, also of the reference",
    "optimizer": "clipping gradients and updating the weights",
    "evaluation": "waiting until the version before is evaluated",
    "publish": "publishing the weights",
    "checkpoint": "writing the checkpoint and the archive of the step before",
}
METRIC_TEXTS: Mapping[str, str] = {
    "step": "Number of the learner step, from 1.",
    "version": "Version of the weights after the step: incarnation, dot, step.",
    "time": "Unix time at which the row was written.",
    "success_rate": "Share of the step's episodes that were won.",
    "episode_return": "Mean sum of an episode's rewards, times env.reward_scale.",
    "task_score": "Mean of the environment's own score at the end of an episode; null if it has none.",
    "episode_length": "Mean number of turns of an episode.",
    "invalid_share": "Share of the turns trained on whose answer is not well-formed.",
    "inadmissible_share": "Share of the turns trained on whose action is not in the environment's list.",
    "cut_share": "Share of the turns trained on whose answer was ended by its limit of tokens, and not by the policy.",
    "prompt_tokens_mean": "Mean number of tokens of a prompt, over the turns trained on.",
    "prompt_tokens_max": "Greatest number of tokens of a prompt.",
    "response_tokens_mean": "Mean number of tokens of an answer, the end token included, over the turns trained on.",
    "response_tokens_max": "Greatest number of tokens of an answer.",
    "episodes": "Number of the step's episodes: those trained on, and those that dynamic sampling replaced.",
    "env_steps": "Number of turns in these episodes.",
    "tokens_sampled": "Number of tokens that the policy sampled in turns and judgements.",
    "tokens_trained": "Number of tokens in the learner's rows, prompts included.",
    "sequences": "Number of sequences in the learner's passes; a whole conversation is one.",
    "prefix_breaks": "Number of turns whose prompt holds earlier answers as other tokens than were sampled.",
    "staleness_mean": "Mean age of the episodes in learner steps, by the oldest of their tokens.",
    "staleness_max": "Greatest age of an episode in learner steps.",
    "dropped_groups": "Number of training groups dropped since the step before.",
    "reissued_episodes": "Number of episodes that were played in a second or later attempt.",
    "replays": "Number of times that sessions of these episodes were rebuilt.",
    "step_seconds": "Wall seconds since the row before; in a learner's first row, since it began to wait for groups.",
    **{f"seconds/{phase}": f"Seconds of {_PHASE_TEXTS[phase]}." for phase in PHASES},
    "loss/policy": "Policy term of the loss, averaged over the step's updates.",
    "loss/value": "The critic's loss; 0 without a critic.",
    "explained_variance": "Share of the variance of the critic's targets that its values from before the step explain: "
                          "1 if it knows each, 0 if no more than their mean; null without a critic.",
    "loss/kl": "Estimate of the KL divergence to the initial policy per token; 0 if learner.loss.kl is 0.",
    "loss/entropy": "Mean entropy of the policy in nats per token.",
    "loss/imitation": "Mean of -log π over the tokens of demonstrated answers; null in a step without imitation.",
    "distill/reverse_kl": "Mean of log π - log π_teacher over the sampled tokens before the step's updates; null if no "
                          "teacher is asked.",
    "grad_norm": "Mean norm of the policy's gradient before clipping; null if an update was skipped.",
    "clip_fraction": "Share of the policy loss whose ratio is clipped, each action or each token with the weight that "
                     "learner.loss.aggregation gives it.",
    "ratio_mean": "Mean ratio of new to old probability, with the same weights.",
    "is_capped_share": "Share of tokens whose importance weight is learner.loss.is_cap.",
    "logprob_difference_mean": "Mean absolute difference of the learner's and the sampler's logprobs per token.",
    "logprob_difference_max": "Largest absolute difference of the learner's and the sampler's logprobs of a token.",
    "credit/group_size_mean": "Mean number of a group's turns in one state.",
    "credit/singleton_share": "Share of turns whose state no other turn of the group has.",
    "credit/mixed_share": "Share of turns that share their state mostly with turns that had other admissible actions; "
                          "null if the environment lists none.",
    "credit/active_share": "Share of turns whose advantage is not 0.",
    "credit/flat_share": "Share of groups in which all advantages are 0.",
    "credit/advantage_iqr": "Interquartile range of the advantages.",
    "credit/share_above_one": "Share of turns whose advantage is above 1 or below -1.",
    "credit/share_2_4": "Share of turns whose state 2 to 4 turns of the group have.",
    "credit/share_5_8": "Share of turns whose state 5 to 8 turns of the group have.",
    "credit/share_above_8": "Share of turns whose state more than 8 turns of the group have.",
    "credit/advantage_mean": "Mean advantage of a turn.",
    "credit/advantage_std": "Standard deviation of the advantages.",
    "credit/advantage_min": "Smallest advantage.",
    "credit/advantage_max": "Largest advantage.",
    "judge/questions": "Number of questions of the judge task; the shares below are null if it is 0.",
    "judge/good_share": "Share of the questions that are about good actions.",
    "judge/spread_share": "Share of the questions whose answers do not all earn the same.",
    "judge/accuracy": "Mean of judge/accuracy_good and judge/accuracy_bad: one half for a coin.",
    "judge/accuracy_good": "Share of right answers to questions about good actions.",
    "judge/accuracy_bad": "Share of right answers to questions about bad actions.",
    "judge/unread_share": "Share of the judge's answers that say neither good nor bad.",
}
"""Key of metrics.jsonl -> its meaning, one sentence."""
METRIC_KEYS = tuple(METRIC_TEXTS)
FORMAT = 1

MetricsRow = dict[str, Any]


class _Row(MetricsRow):
    """One row. A missing key reads as null, because other versions have other keys and files get damaged.

    Keys that readers compute with have a neutral value instead: an unknown interval is [0, 1].
    """

    def __missing__(self, key: str) -> Any:
        return _BLANK.get(key)


_BLANK: Mapping[str, Any] = {
    "step": 0, "time": 0.0, "version": "", "split": "", "tasks": 0, "episodes": 0, "success_low": 0.0,
    "success_high": 1.0, "success_by_task": {}, "success_by_type": {}}
FILE_BYTES = GIB
"""Largest file that is read. A line has one or two kilobytes, so this is half a million learner steps."""
EVALUATED = ("label", "temperature", "success_rate")
"""Values that each line of evaluations.jsonl has."""
GIVEN = "given"
"""Key that marks an evaluation copied from a run with the same cold start. Its episodes are in that run's archive."""
LARGEST = 1e150
"""Largest absolute value of a number. Nothing measures more, and the square or sum of larger ones is not finite."""
_FIGURE = (int, float, str, type(None))
_NUMBER = (int, float, type(None))
_KINDS: dict[str, Any] = {
    **dict.fromkeys((*METRIC_KEYS, "success_low", "success_high"), _NUMBER),
    "label": str, "version": str, "split": str, "temperature": (int, float), "tasks": int, "time": (int, float),
    "success_by_task": dict, "success_by_type": dict, "score_by_task": dict, "groups": list, "drops": list,
    "score_by_rule": dict, "full_score_by_rule": dict,
    **{f"{name}{end}": dict for name in ("pass_at", "best_score", "success_by_env") for end in ("", "_low", "_high")}}
"""Types of values by key. All other values are numbers or text, and those of a dict are numbers."""


def check_metrics(row: Mapping[str, Any]) -> None:
    """Raises ValueError if a row of metrics.jsonl lacks a key or has one that is not in METRIC_KEYS."""
    missing, extra = set(METRIC_KEYS) - set(row), set(row) - set(METRIC_KEYS)
    if missing or extra:
        raise ValueError(f"metrics row: missing {sorted(missing)}, unknown {sorted(extra)}")


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends one object with its `format`, and flushes it to disk before it returns.

    If a crash left half a line, a newline is written first, so that only this line is lost. NaN and infinity become
    null, because JSON has no such numbers. Raises OSError, also without the folder, which is never made here: a mount
    that comes back would hide the new one with the row in it.
    """
    line = json.dumps({"format": FORMAT, **_plain(row)}, allow_nan=False)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def keep_row(path: Path, row: Mapping[str, Any], *, wait_s: float,
             note: Callable[[str], object] = lambda _: None) -> None:
    """Appends one object as append_row does. Waits up to `wait_s` for a full disk or an unavailable folder.

    Raises DeadlineExceeded after that. `note` takes a line that names what is waited for.
    """
    retry_files(partial(append_row, path, row), seconds=wait_s, what=f"{path} could not be written", note=note)


def _plain(value: Any) -> Any:
    """Returns a value that JSON can hold: numpy scalars as numbers, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: Path) -> list[MetricsRow]:
    """Returns all complete lines in order, or [] without a file.

    Raises Damaged for a file that is too large or not plain. Omits lines that a crash cut short, and lines with a
    value that its key does not allow.
    """
    try:
        lines = read_bounded(path, FILE_BYTES).splitlines()
    except FileNotFoundError:
        return []
    return [row for row in map(parse_row, lines) if row is not None]


def cut_short(line: bytes) -> bool:
    """Returns whether a line lacks its end, as one that a crash cut short or that is being written."""
    if line[:1] not in (b"", b"{"):
        return False
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except (UnicodeDecodeError, RecursionError):
        return False
    return False


def parse_row(line: bytes) -> MetricsRow | None:
    """Returns the row of one line, or None if the line is damaged."""
    try:
        row = msgspec.json.decode(line, type=dict[str, Any])
    except NOT_JSON:
        return None
    step = row.get("step", 0)
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 1 << 53:
        return None
    if not all(_fits(value, _KINDS.get(key, _NUMBER if key.startswith((PREFIX, ENV_PREFIX)) else _FIGURE))
               for key, value in row.items()):
        return None
    return _Row({key: value for key, value in row.items() if value is not None or key not in _BLANK})


def _fits(value: Any, kinds: Any) -> bool:
    """Returns whether a value has one of the types, and all numbers in it are within ±LARGEST."""
    if isinstance(value, dict):
        return kinds is dict and all(_fits(item, _NUMBER) for item in value.values())
    return isinstance(value, kinds) and (not isinstance(value, int | float) or abs(value) <= LARGEST)


def read_metrics(path: Path) -> list[MetricsRow]:
    """Returns one row per learner step, in order. If a resumed run repeated a step, its last row counts."""
    return last_of_each_step(read_rows(path))


def last_of_each_step(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Returns the last row of metrics.jsonl for each learner step, sorted by step."""
    last = {row["step"]: row for row in rows if "step" in row}
    return [last[step] for step in sorted(last)]


def read_evaluations(path: Path) -> list[MetricsRow]:
    """Returns one row per label and temperature, in order. If an evaluation was repeated, its last row counts."""
    return last_of_each_evaluation(read_rows(path))


def last_of_each_evaluation(rows: Iterable[MetricsRow]) -> list[MetricsRow]:
    """Returns the last row of evaluations.jsonl for each label and temperature, in order of their first rows."""
    return list({(row["label"], row["temperature"]): row for row in rows
                 if all(row.get(key) is not None for key in EVALUATED)}.values())


def drop_rows(path: Path, *, after_step: int, wait_s: float = 0.0) -> None:
    """Removes the rows of later steps, because a run that resumes from a checkpoint takes those steps again.

    Waits up to `wait_s` for a full disk or an unavailable folder. Raises DeadlineExceeded after that.
    """
    retry_files(partial(_drop_rows, path, after_step), seconds=wait_s, what=f"{path} could not be written")


def _drop_rows(path: Path, after_step: int) -> None:
    rows = read_rows(path)
    kept = [row for row in rows if row.get("step", 0) <= after_step]
    if len(kept) < len(rows):
        write_whole(path, "".join(json.dumps(row) + "\n" for row in kept))
