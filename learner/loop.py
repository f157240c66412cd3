"""The training loop, on rank 0.

    wait      groups_per_step ready groups, oldest first; none is overtaken that the next step could not use
    commit    the manifest, before any weight moves: the log that a restart replays to the letter
    train     credit, loss, optimizer
    publish   after the evaluation of the version that it replaces
    persist   archive and metrics always; a checkpoint every so often, and only then are episodes retired and is an
              evaluation begun

A step whose manifest exists is a replay: the same groups in the same order, else the same loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from learner.checkpoint import EXPORT, Checkpoints, Position
from learner.credit.types import Credit
from learner.step import Timer
from learner.step_metrics import figures
from learner.telemetry import step_taken, trace_step
from learner.trainer import Learner, StepReport
from services.config.tree import Config
from services.errors import DeadlineExceeded
from services.records import Drop, Episode, Manifest, Version
from services.store.archive import ArchiveRow, EpisodeArchive
from services.store.lease import Lease
from services.store.store import Store
from services.telemetry.heartbeat import Pulse
from services.telemetry.logs import bind, get_logger
from services.telemetry.metrics_file import append_row, check_metrics, drop_rows
from services.telemetry.tickets import reason_class, trace_drop
from services.weights.pack import Packed, pack_tensors

POLL_S = 0.1
OVERDUE_S = 600.0
"""How long a step waits for a group that only this step can use, before it drops the group."""
WAIT_S = 1800.0
"""How long a step waits for groups at all; the controller's watchdog is earlier and names who is stuck."""
RETAINED_BYTES = 2 << 30
"""Episodes held in Redis; beyond it a checkpoint is made, so that they can be retired."""
UNIFORM = "uniform reward"
"""Why dynamic sampling drops a group: how the reason begins."""
log = get_logger("learner")


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """`publish` hands packed weights to the samplers; `before_publish` returns once the version that is replaced may
    go; `check` raises when this process has lost its role."""

    config: Config
    learner: Learner
    store: Store
    lease: Lease
    archive: EpisodeArchive
    checkpoints: Checkpoints
    metrics: Path
    publish: Callable[[Version, Packed], None]
    before_publish: Callable[[Version], None]
    check: Callable[[], None] = lambda: None
    pulse: Pulse = field(default_factory=lambda: Pulse("learner-0", "learner"))
    incarnation: int = 0
    position: Position = field(default=Position(step=0, incarnation=0, next_group=0, trained=0))
    version: Version | None = None

    def run(self) -> None:
        """Until the last step is trained, published and checkpointed."""
        self.restore()
        self.publish_weights()
        manifests = {manifest.step: manifest for manifest in self.store.manifests(self.learner.step)}
        timer = Timer()
        while self.learner.step < self.config.steps:
            self.pulse.doing("waits for groups")
            with timer.phase("wait"):
                manifest = manifests.get(self.learner.step + 1) or self.commit()
                groups = [self.store.episodes(group) for group in manifest.groups]
            self.pulse.doing(f"trains step {manifest.step}")
            since = time.time_ns()
            report = self.learner.train(groups)
            trace_step(Version(incarnation=self.incarnation, step=manifest.step), groups, report.credits, since=since)
            self.position = self._after(manifest)
            log.info("step trained", step=manifest.step, groups=len(groups), replayed=manifest.step in manifests)
            self.pulse.doing("publishes, after the evaluation of the version before")
            with timer.phase("publish"):
                self.publish_weights()
            self._archive(groups, report)
            seconds = {"checkpoint": 0.0} | timer.seconds
            row = figures(self.version, manifest, groups, report.metrics, seconds)
            check_metrics(row)
            append_row(self.metrics, row)
            step_taken(self.pulse, row, report.credits, report.utilization)
            self.pulse.doing("writes checkpoints and archives")
            # After the line, which no replay would write once the checkpoint is there; its seconds go into the next.
            timer = Timer()
            with timer.phase("checkpoint"):
                self.persist(forced=self.learner.step == self.config.steps)

    def restore(self) -> None:
        """The newest whole checkpoint, a new incarnation, a store that agrees with both: else the checkpoint wins."""
        found = self.checkpoints.newest_whole()
        if found is not None:
            self.position = found
            self.learner.load(self.checkpoints.folder(found.step))
        drop_rows(self.metrics, after_step=self.position.step)
        self.incarnation = self.store.incarnation(self.lease, above=self.position.incarnation)
        at = self.position
        durable = self.checkpoints.written(at.step) if found else time.time()
        self.pulse.meters("gagpo_learner_checkpoint_timestamp_seconds").set(durable)
        log.info("restored" if found else "no checkpoint", step=at.step, incarnation=self.incarnation)
        if not self.store.agrees_with(at.step):
            log.warning("Redis and the checkpoint disagree: work in flight is issued anew", step=at.step)
            self.store.reset_to(self.lease, at.step, at.next_group, trained=at.trained)

    def commit(self) -> Manifest:
        """Waits for the groups of the next step and writes its manifest."""
        step = self.learner.step + 1
        return self.store.begin_step(
            self.lease, Manifest(step=step, incarnation=self.incarnation, groups=self.collect(), drops=[]))

    def collect(self) -> list[str]:
        """The oldest ready groups of a step. Over-age ones are dropped, under dynamic sampling also those that teach
        nothing; unfinished ones that would be over-age at the next step are waited for. Raises DeadlineExceeded."""
        need, started = self.config.learner.groups_per_step, time.monotonic()
        while True:
            self.check()
            ready, overdue = self.store.ready("train")[:need], self._only_now()
            if len(ready) == need and not overdue:
                ready = self._not_uniform(self._young_enough(ready))
                if len(ready) == need:
                    return ready
                started = time.monotonic()  # what takes the place of a dropped group has only now begun
            waited = time.monotonic() - started
            if len(ready) == need and waited > OVERDUE_S:
                for group in overdue:
                    self._drop(group, f"over-age: unfinished {OVERDUE_S:.0f} s after its step could begin")
            if waited > WAIT_S:
                raise DeadlineExceeded(f"step {self.learner.step + 1}: {len(ready)} of {need} groups in {WAIT_S:.0f} s")
            time.sleep(POLL_S)

    def _only_now(self) -> list[str]:
        """Unfinished groups that were issued for this step or an earlier one: by the next they may be over-age."""
        counts, need = self.store.counts(), self.config.learner.groups_per_step
        last = counts.trained + counts.dropped + need
        return [group for group in self.store.outstanding_groups()
                if group.startswith("train/") and int(group.removeprefix("train/")) < last]

    def _young_enough(self, groups: list[str]) -> list[str]:
        oldest = self.learner.step - self.config.learner.staleness
        if oldest <= 0:
            return groups
        kept: list[str] = []
        for group in groups:
            if min(episode.oldest_step for episode in self.store.episodes(group)) >= oldest:
                kept.append(group)
            else:
                self._drop(group, f"over-age: sampled before step {oldest}")
        return kept

    def _not_uniform(self, groups: list[str]) -> list[str]:
        """Without the groups whose episodes all earn the same: group statistics make no gradient of them (DAPO,
        arXiv 2503.14476, section 3.2; from verl-agent, whose rounds sample groups_per_step groups each).

        The oldest go, until as many were dropped for this step as its rounds allow; the rest is taken as it is. The
        count is read from the store, so that an interruption changes nothing about which groups a step takes.
        """
        learner = self.config.learner
        left = learner.dynamic_sampling * learner.groups_per_step
        if not left:
            return groups
        left -= sum(drop.reason.startswith(UNIFORM) for drop in self.store.drops())
        kept: list[str] = []
        for group in groups:
            rewards = {episode.total_reward for episode in self.store.episodes(group)}
            if len(rewards) > 1 or left <= 0:
                kept.append(group)
            else:
                left -= 1
                self._drop(group, f"{UNIFORM} {rewards.pop():g}", tell=log.info)
        return kept

    def _drop(self, group: str, reason: str, *, tell: Callable[..., object] = log.warning) -> None:
        task, episodes = self.store.task_of(group), self.store.episodes(group)
        drop = Drop(group=group, task=task, reason=reason, steps=sum(len(episode.steps) for episode in episodes))
        self.pulse.meters("gagpo_groups_dropped_total", reason=reason_class(reason)).inc()
        trace_drop(group, self.config.learner.group_size, reason)
        tell("group dropped", group=group, task=task, reason=reason)
        self.archive.write_dropped(drop, episodes)
        self.store.drop(self.lease, drop)

    def publish_weights(self) -> None:
        """Makes the learner's weights the current version."""
        packed = pack_tensors(self.learner.state_dict_for_sampler())
        if self.version is not None:
            self.before_publish(self.version)
        self.version = Version(incarnation=self.incarnation, step=self.learner.step, digest=packed.digest)
        self.publish(self.version, packed)
        self._point()
        bind(version=self.version.short)
        log.info("published")

    def _point(self) -> None:
        """The current version, with the newest export for a sampler that cannot fetch it."""
        assert self.version is not None
        found = self.checkpoints.latest()
        path = self.checkpoints.folder(found.step) / EXPORT if found else self.learner.model_path
        self.store.publish_version(self.lease, self.version, str(path))

    def persist(self, *, forced: bool) -> None:
        """A checkpoint where one is due, of each evaluated step too, so that the best can be kept; then, with the
        archive durable as well, its episodes are retired."""
        step = self.learner.step
        due = step % self.config.checkpoint.every == 0 or self.config.evaluates(step)
        if not (due or forced or self.store.retained_bytes() > RETAINED_BYTES):
            return
        started = time.monotonic()
        self.checkpoints.commit(self.position, self._write)
        log.info("checkpoint written", step=step, seconds=time.monotonic() - started)
        self.pulse.meters("gagpo_learner_checkpoint_timestamp_seconds").set_to_current_time()
        self._point()
        self.archive.flush()
        log.info("episodes retired", step=step, bytes=self.store.retire(self.lease, step))

    def _write(self, folder: Path) -> None:
        self.learner.save(folder)
        self.learner.export(folder / EXPORT)

    def _after(self, manifest: Manifest) -> Position:
        last = max(int(group.removeprefix("train/")) for group in manifest.groups)
        return Position(step=manifest.step, incarnation=self.incarnation,
                        next_group=max(self.position.next_group, last + 1),
                        trained=self.position.trained + len(manifest.groups))

    def _archive(self, groups: list[list[Episode]], report: StepReport) -> None:
        rows = iter(report.logprobs)
        self.archive.write(self.learner.step, [
            ArchiveRow(episode=episode, outcome="trained",
                columns=credit_columns(credit, k) | {"learner_logprobs": list(islice(rows, len(episode.steps)))})
            for group, credit in zip(groups, report.credits, strict=True) for k, episode in enumerate(group)])


def credit_columns(credit: Credit, k: int) -> dict[str, Sequence[Any]]:
    """The archive's credit columns of episode k; those that the estimator lacks are left out."""
    columns: dict[str, Sequence[Any]] = {
        "advantage": credit.advantages[k], "raw_advantage": credit.raw_advantages[k], "return": credit.returns[k],
        "state_key": credit.states[k]}
    if credit.values is not None:
        columns["value"] = [credit.values[state][0] for state in credit.states[k]]
    if credit.deltas is not None:
        columns["delta"] = credit.deltas[k]
    if credit.baselines is not None:
        columns["baseline"] = credit.baselines[k]
    return columns
