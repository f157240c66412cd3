"""Reports what the training loop does: heartbeat, log, and the rows of metrics.jsonl and the ledger.

The loop calls an Observer at each event (restored, waiting, training, trained, published, ...). What it logs itself is
about versions, checkpoints and retired episodes.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from learner.collect import UNIFORM, WAITS
from learner.credit.types import Credit
from learner.rows.batch import Groups
from learner.rows.judge import judge_metrics
from learner.trainer import StepReport
from services.records import Episode, Manifest, Tally, Version
from services.telemetry.heartbeat import Heartbeat
from services.telemetry.logs import get_logger
from services.telemetry.metrics_file import check_metrics, drop_rows, keep_row
from services.telemetry.task_types import ENV_PREFIX, type_columns

GAUGES = {
    "grad_norm": ("gagpo_learner_gradient_norm", {}), "clip_fraction": ("gagpo_learner_clipped_ratio", {}),
    "ratio_mean": ("gagpo_learner_importance_ratio_mean", {}), "step": ("gagpo_learner_step", {}),
    "success_rate": ("gagpo_train_success_ratio", {}), "episode_return": ("gagpo_train_episode_return", {}),
    "episode_length": ("gagpo_train_episode_length_steps", {}),
    **{f"loss/{part}": ("gagpo_learner_loss", {"part": part}) for part in ("policy", "value", "kl", "entropy")},
    **{f"logprob_difference_{stat}": ("gagpo_learner_logprob_difference", {"stat": stat}) for stat in ("mean", "max")},
    **{f"staleness_{stat}": ("gagpo_learner_staleness_steps", {"stat": stat}) for stat in ("mean", "max")},
    **{f"{kind}_share": ("gagpo_train_steps_ratio", {"kind": kind}) for kind in ("invalid", "inadmissible", "cut")},
    **{f"{part}_tokens_{stat}": ("gagpo_train_turn_tokens", {"part": part, "stat": stat})
       for part in ("prompt", "response") for stat in ("mean", "max")},
    "credit/singleton_share": ("gagpo_credit_singleton_ratio", {}),
    "credit/active_share": ("gagpo_credit_active_ratio", {}),
    "credit/flat_share": ("gagpo_credit_flat_groups_ratio", {}),
    "credit/advantage_iqr": ("gagpo_credit_advantage_iqr", {}),
    "credit/share_above_one": ("gagpo_credit_advantage_above_one_ratio", {}),
}
"""Key of metrics.jsonl -> the gauge that shows its last value, and its labels."""


def set_meters(heartbeat: Heartbeat, row: Mapping[str, Any], credits: Sequence[Credit],
               utilization: float | None) -> None:
    """Sets the meters of one learner step. `row` has all METRIC_KEYS; `utilization` is a share of the GPUs' FLOPs."""
    meters = heartbeat.meters
    for key, (name, labels) in GAUGES.items():
        meters(name, **labels).set(row[key])
    meters("gagpo_learner_steps_total").inc()
    for kind in ("sampled", "trained"):
        meters("gagpo_learner_tokens_total", kind=kind).inc(row[f"tokens_{kind}"])
    for key, seconds in row.items():
        if key.startswith("seconds/"):
            meters("gagpo_learner_phase_seconds_total", phase=key.removeprefix("seconds/")).inc(seconds)
    if utilization is not None:
        meters("gagpo_learner_flop_utilization_ratio").set(utilization)
    sizes = meters("gagpo_credit_state_group_size")
    for credit in credits:
        for size in Counter(chain.from_iterable(credit.states)).values():
            for _ in range(size):
                sizes.observe(size)
    heartbeat.progressed()
    heartbeat.holds(str(row["version"]))


def metrics_row(version: Version | None, manifest: Manifest, groups: Sequence[Sequence[Episode]],
                measured: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Returns a row with all keys of services.telemetry.metrics_file.METRIC_KEYS.

    `version`: published after the step. `measured`: the learner's metrics. `seconds`: the time of each phase of the
    loop. All values but those of _totals are over the groups trained on: shares over their turns, ages in learner steps
    at consumption.
    """
    episodes = [episode for group in groups for episode in group]
    steps = [step for episode in episodes for step in episode.steps]
    ages = [manifest.step - 1 - episode.oldest_step for episode in episodes]
    return {
        "step": manifest.step,
        "version": version.short if version is not None else "",
        "time": time.time(),
        **_totals(episodes, manifest),
        "invalid_share": fmean(not step.valid for step in steps),
        "inadmissible_share": fmean(not step.admissible for step in steps),
        "cut_share": fmean(step.cut for step in steps),
        **_lengths("prompt", [len(step.prompt_ids) for step in steps]),
        **_lengths("response", [len(step.response_ids) for step in steps]),
        "prefix_breaks": sum(step.broke for step in steps),
        "staleness_mean": fmean(ages),
        "staleness_max": max(ages),
        "dropped_groups": sum(drop.group.startswith("train/") for drop in manifest.drops),
        "reissued_episodes": sum(episode.attempt > 1 for episode in episodes),
        "replays": sum(episode.replays for episode in episodes),
        **judge_metrics(episodes),
        **{f"seconds/{phase}": value for phase, value in seconds.items()},
        **measured,
    }


def _lengths(part: str, tokens: Sequence[int]) -> dict[str, float]:
    return {f"{part}_tokens_mean": fmean(tokens), f"{part}_tokens_max": max(tokens)}


def _totals(episodes: Sequence[Episode], manifest: Manifest) -> dict[str, float]:
    """Returns the means and sums over the episodes trained on and those that dynamic sampling replaced.

    Replaced groups are mostly won or lost entirely, so the success rate without them would be that of the other games.
    tokens_sampled counts judgements too. task_score is NaN if the environment has no score.
    """
    parts = [Tally.of(episodes), *(drop for drop in manifest.drops if drop.reason.startswith(UNIFORM))]
    number, steps = sum(part.episodes for part in parts), sum(part.steps for part in parts)
    scored = sum(part.scored for part in parts)
    return {
        "success_rate": sum(part.wins for part in parts) / number,
        "episode_return": math.fsum(part.reward for part in parts) / number,
        "task_score": math.fsum(part.score for part in parts) / scored if scored else math.nan,
        "episode_length": steps / number,
        "episodes": number,
        "env_steps": steps,
        "tokens_sampled": sum(part.tokens for part in parts),
    }


def _won(manifest: Manifest, groups: Sequence[Sequence[Episode]]) -> Iterator[tuple[str, str, float]]:
    """Yields task, task type and share of won episodes of the groups trained on and those that dynamic sampling
    replaced. Without the replaced ones, a type whose groups are all won or all lost would have no results at all."""
    for group in groups:
        yield group[0].ticket.task, group[0].ticket.task_type, fmean(episode.won for episode in group)
    for drop in manifest.drops:
        if drop.reason.startswith(UNIFORM) and drop.episodes:
            yield drop.task, drop.task_type, drop.wins / drop.episodes


def columns_by_type(manifest: Manifest, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """Returns the columns by task type over the groups trained on and those that dynamic sampling replaced."""
    return type_columns((task_type, won) for _, task_type, won in _won(manifest, groups))


def columns_by_env(manifest: Manifest, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """Returns the columns by environment, over the same groups as columns_by_type."""
    return type_columns(((task.partition("/")[0], won) for task, _, won in _won(manifest, groups)), ENV_PREFIX)


LEDGER = "ledger.jsonl"
"""File next to metrics.jsonl with one line for each learner step: its manifest."""
log = get_logger("learner")


@dataclass(slots=True, kw_only=True)
class Observer:
    """Reports the events of the loop and measures the time between them."""

    metrics: Path
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat("learner-0", "learner"))
    patience_s: float = 0.0
    """Longest wait for a folder that cannot be written (learner.collective_s)."""
    by_type: bool = False
    """Whether rows of metrics.jsonl also have columns by task type."""
    by_env: bool = False
    """Whether they have columns by environment."""
    _phase: str = ""
    _entered: float = 0.0
    _began: float = 0.0
    """When the previous row was written, or when the loop first waited for groups; 0 before that."""
    _seconds: dict[str, float] = field(default_factory=dict)
    _manifest: Manifest | None = None
    _groups: Groups = ()
    _report: StepReport | None = None
    _mismatched: bool = False

    @property
    def ledger(self) -> Path:
        """The file with one line for each learner step."""
        return self.metrics.with_name(LEDGER)

    def restored(self, step: int, *, incarnation: int, has_checkpoint: bool, durable: float) -> None:
        """The learner continues after `step`. `durable`: Unix time of its checkpoint, or of the start without one."""
        for path in (self.metrics, self.ledger):
            drop_rows(path, after_step=step, wait_s=self.patience_s)
        self.checkpointed(durable)
        log.info("restored" if has_checkpoint else "no checkpoint", step=step, incarnation=incarnation)

    def forgotten(self, step: int, *, next_group: int, incarnation: int) -> None:
        """The store will be reset to a checkpoint, and forgets which groups before `next_group` were dropped."""
        log.warning("Redis and the checkpoint disagree: work in flight is issued again", step=step)
        keep_row(self.ledger, {"step": step, "incarnation": incarnation, "reset_to_group": next_group},
                 wait_s=self.patience_s)

    def waiting(self) -> None:
        """The loop waits for the groups of its next step."""
        self._enter("wait", WAITS)
        self._began = self._began or self._entered

    def training(self, manifest: Manifest, groups: Groups) -> None:
        """The loop trains on these groups."""
        self._enter("", f"trains step {manifest.step}")
        self._manifest, self._groups = manifest, groups

    def trained(self, report: StepReport, *, replayed: bool) -> None:
        """The weights are updated. They are published once the previous version is evaluated."""
        assert self._manifest is not None
        self._report, step = report, self._manifest.step
        log.info("step trained", step=step, groups=len(self._groups), replayed=replayed)
        if report.mismatch and not self._mismatched:  # one line, until the two agree again
            log.warning("learner and sampler disagree about the sampler's tokens", step=step, reason=report.mismatch)
        self._mismatched = bool(report.mismatch)
        self._enter("evaluation", "waits for the evaluation of the previous version")

    def publishing(self) -> None:
        """The previous version is evaluated."""
        self._enter("publish", "publishes")

    def published(self, version: Version) -> None:
        """The new weights are current: the step gets its lines in metrics.jsonl and in the ledger."""
        assert self._manifest is not None
        assert self._report is not None
        self._enter("checkpoint", "writes checkpoints and archives")
        # A step with a checkpoint is never replayed, so its lines are written before the checkpoint. So the seconds of
        # the checkpoint are in the next line.
        seconds = {"checkpoint": 0.0} | self._seconds
        wall, self._began, self._seconds = self._entered - self._began, self._entered, {}
        measured = self._report.metrics | {"step_seconds": wall}
        row = metrics_row(version, self._manifest, self._groups, measured, seconds)
        check_metrics(row)
        if self.by_type:
            row |= columns_by_type(self._manifest, self._groups)
        if self.by_env:
            row |= columns_by_env(self._manifest, self._groups)
        keep_row(self.ledger, msgspec.to_builtins(self._manifest), wait_s=self.patience_s)
        keep_row(self.metrics, row, wait_s=self.patience_s)
        set_meters(self.heartbeat, row, self._report.credits, self._report.utilization)

    def checkpointed(self, at: float) -> None:
        """The newest checkpoint is durable since this Unix time."""
        self.heartbeat.meters("gagpo_learner_checkpoint_timestamp_seconds").set(at)

    def _enter(self, phase: str, doing: str) -> None:
        """Ends the previous phase and enters `phase`. Phases without a name are timed elsewhere."""
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._entered
        self._phase, self._entered = phase, now
        self.heartbeat.doing(doing)
