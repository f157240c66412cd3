"""The training loop, on rank 0.

    wait      for the manifest of the next step: groups_per_step finished groups, committed before any weight changes
    train     credit, loss, optimizer
    publish   after the evaluation of the version that it replaces (services/weights/channel.py)
    persist   a checkpoint when it is due, else the weights of an evaluated step
    retire    the episodes up to a durable checkpoint leave Redis, after which their steps cannot be replayed

Three things become durable in a fixed order: the archive, the checkpoint, the retirement of its episodes. With an
object store, retirement also waits until the checkpoint is there. The loop's thread writes the archive and copies the
state to host memory. A second thread does the rest while the loop continues.
After a crash between any two, the previous checkpoint is valid, and everything that follows it can be replayed.

If the manifest of a step exists, the step is a replay: it trains on the same groups in the same order. So a step that
failed because of its own groups (no memory for the longest rows, a group that credit cannot read) fails again in every
process of the learner. Failed attempts are counted, and the run ends after `learner.step_attempts` of them.
If `check` raises Leaving, the loop makes a checkpoint of the published step and returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learner.checkpoints.background import Background
from learner.checkpoints.checkpoint import EXPORT, Checkpoints, Position
from learner.collect import GroupCollector
from learner.observer import Observer
from learner.rows.batch import Groups, credit_columns
from learner.trainer import Learner, StepReport
from services.config.tree import Config
from services.errors import UserError, in_short
from services.outages import retry_files
from services.records import Episode, Manifest, Version
from services.rewards import LARGEST_REWARD
from services.store.archive import ArchiveRow, EpisodeArchive
from services.store.lease import Lease
from services.store.store import Store
from services.telemetry.logs import bind, get_logger
from services.weights.canary import Canary
from services.weights.pack import Packed, unpack

if TYPE_CHECKING:
    from learner.weights.sender import WeightSender  # it imports ray

LOOK_EVERY_S = 5.0
"""Seconds between two checks that the store still names the current version."""
MIRROR_LOOK_S = 0.5
"""Seconds between two checks whether the object store has the last checkpoint."""
SILENT = "the learner died without an error, as when the machine runs out of memory"
log = get_logger("learner")


class Leaving(Exception):
    """The run was asked to end early. It is raised between learner steps, never inside one."""


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """Trains, publishes and persists, step by step.

    `sender` hands new weights to the samplers. `before_publish` returns once the current version may be replaced. While
    it waits, it calls the function that it is given.
    `check` raises if this process has lost its role, and Leaving if the run was asked to end.
    """

    config: Config
    learner: Learner
    store: Store
    lease: Lease
    archive: EpisodeArchive
    checkpoints: Checkpoints
    observer: Observer
    sender: WeightSender
    before_publish: Callable[[Version, Callable[[], None]], None]
    check: Callable[[], None] = lambda: None
    mirrored: Callable[[], int] | None = None
    """Returns the step of the newest checkpoint in the object store; None: there is no such store."""
    gpu_turn: Callable[[], AbstractContextManager[None]] = nullcontext
    """Held while the learner uses its GPUs, if it shares them with rollout workers in turns."""
    incarnation: int = 0
    position: Position = field(default=Position(step=0, incarnation=0, next_group=0, trained=0))
    version: Version = field(default=Version(incarnation=0, step=0))
    canary: Canary | None = None
    """The learner's results with the weights of `version`."""
    exported: Path | None = None
    """The newest model that the run has exported; None before the first: the initial one counts then."""
    writing: Background = field(init=False)
    retirement: Retirement = field(init=False)
    _pointing: threading.Lock = field(default_factory=threading.Lock)
    _canary: Canary | None = None
    """The canary of the last snapshot."""
    _checked_at: float = 0.0

    def __post_init__(self) -> None:
        self.writing = Background("checkpoint", deadline_s=self.config.learner.collective_s)
        self.retirement = Retirement(self.store, self.lease, self.mirrored)

    def run(self) -> bool:
        """Returns True once the last step is trained, published and checkpointed; False if `check` raised Leaving."""
        finished = False
        with self.writing:
            try:
                self._run()
                finished = True
            except Leaving:
                self._leave()
            self._retire_rest()
        return finished

    def _run(self) -> None:
        with self.gpu_turn():
            self.restore()
            version = self.snapshot()
        self.publish_weights(version)
        while self.learner.step < self.config.steps:
            self._check()
            self.observer.waiting()
            manifest, replayed = self.next_manifest()
            report, version = self.train(manifest)
            self.observer.trained(report, replayed=replayed)
            self.publish_weights(version)
            self.observer.published(self.version)
            self.persist()

    def restore(self) -> None:
        """Loads the newest intact checkpoint and begins an incarnation. A store that disagrees with it is reset."""
        newest = self.checkpoints.newest_intact(wait_s=self.config.learner.collective_s)
        if newest is not None:
            self.position = newest
            self.learner.load(self.checkpoints.folder(newest.step))
            self.exported = self.checkpoints.folder(newest.step) / EXPORT
        at = self.position
        self.incarnation = self.store.state.incarnation(self.lease, above=at.incarnation)
        self.observer.restored(at.step, incarnation=self.incarnation, has_checkpoint=newest is not None,
                               durable=self.checkpoints.written(at.step) if newest else time.time())
        if not self.store.steps.agrees_with(at.step):
            # The ledger first: if it lacks a reset, an audit reports the groups as lost.
            self.observer.forgotten(at.step, next_group=at.next_group, incarnation=self.incarnation)
            self.store.steps.reset_to(self.lease, at.step, at.next_group, trained=at.trained)
        self.retirement.restored(at.step)

    def next_manifest(self) -> tuple[Manifest, bool]:
        """Returns the manifest of the next step, and whether an earlier process of the learner committed it."""
        step = self.learner.step + 1
        for manifest in self.store.steps.manifests(self.learner.step):
            if manifest.step == step:
                return manifest, True
        groups = self._collector().collect(step)
        proposed = Manifest(step=step, incarnation=self.incarnation, groups=groups, drops=[])
        return self.store.steps.begin(self.lease, proposed), False

    def _collector(self) -> GroupCollector:
        return GroupCollector(section=self.config.learner, store=self.store, lease=self.lease, archive=self.archive,
                              check=self._check, heartbeat=self.observer.heartbeat)

    def train(self, manifest: Manifest) -> tuple[StepReport, Version]:
        """Takes one learner step and writes its episodes to the archive. Raises UserError if it failed too often.

        Returns its report, and the version of the new weights, of which the sender has a snapshot.
        """
        limit = self.config.learner.step_attempts
        # Waiting for the GPUs does not count as an attempt, so a shutdown meanwhile is not a failure.
        with self.gpu_turn(), counted_attempt(self.store, self.lease, manifest,
                                              incarnation=self.incarnation, limit=limit):
            groups = self.store.committed(manifest)
            check_numbers(manifest.step, groups)
            self.observer.training(manifest, groups)
            report, version = self.learner.train(groups, incarnation=self.incarnation), self.snapshot()
        last = max(int(group.removeprefix("train/")) for group in manifest.groups)
        self.position = Position(
            step=manifest.step, incarnation=self.incarnation, next_group=max(self.position.next_group, last + 1),
            trained=self.position.trained + len(manifest.groups))
        self.archive.write(manifest.step, _archive_rows(groups, report))
        return report, version

    def _check(self) -> None:
        """Does what cannot wait while the loop waits. Raises what `check` raises, and the error of the second thread.
        """
        self.check()
        self.sender.keep()
        self.writing.check()
        if self.version.incarnation and time.monotonic() - self._checked_at >= LOOK_EVERY_S:
            self._checked_at, stored = time.monotonic(), self.store.state.version()
            if stored is None or stored[0] != self.version:  # Redis may lose the last second before its machine died
                log.warning("Redis has lost the current version; it is named again", version=self.version.short)
                self._set_pointer()
            if not self.writing.busy and self.retirement.due:
                self.writing.start(self.retirement.retire)

    def snapshot(self) -> Version:
        """Copies the learner's weights for the samplers, while it has its GPUs. Returns their version."""
        self._canary = self.learner.canary()
        return self.sender.snapshot(Version(incarnation=self.incarnation, step=self.learner.step))

    def publish_weights(self, version: Version) -> None:
        """Sends the last snapshot, `version`, and makes it the current version."""
        if self.version.incarnation:
            self.before_publish(self.version, self._check)
            self.observer.publishing()
        self.sender.send(version, lambda version: self._set_pointer(version=version, canary=self._canary))
        if self.config.evaluates(version.step):
            self.sender.copy()  # for workers that start during the evaluation, while the next version waits
        bind(version=version.short)
        log.info("published")

    def _set_pointer(self, *, version: Version | None = None, canary: Canary | None = None,
                     exported: Path | None = None) -> None:
        """Sets the store's pointer: the current version, and an export for workers that cannot fetch its weights.

        None keeps the version with its canary, or the export. The loop's thread sets the version, the second thread the
        export.
        """
        with self._pointing:
            self.version, self.exported = version or self.version, exported or self.exported
            self.canary = canary or self.canary
            self.store.state.publish_version(self.lease, self.version, str(self.exported or self.learner.model_path),
                                             self.canary)

    def persist(self) -> None:
        """Begins to write a checkpoint if one is due or Redis holds too many episodes, else the weights of an evaluated
        step.

        The archive becomes durable first: a step with a checkpoint is never replayed, so nothing would write its file
        again. The weights of every evaluated step are written, because the best ones can be exported. A replay does not
        overwrite weights that were evaluated already: the score belongs to them.
        """
        step, adapters = self.learner.step, self.config.learner.lora.rank > 0
        evaluates = self.config.evaluates(step)
        # Adapters are exported from the state, so an evaluated step keeps it. It is hardly larger than the weights.
        due = step % self.config.checkpoint.every == 0 or step == self.config.steps or (evaluates and adapters)
        if due or (not self.writing.busy and not self.retirement.pending and self.store.crowded()):
            self._make_durable()
        elif evaluates and self.store.state.evaluated() < step:
            self._keep_weights()

    def _leave(self) -> None:
        """Makes a checkpoint of the published step if it has none.

        A step whose weights are not published yet gets none: the evaluation of the version before it may be unfinished,
        and only a replay from the checkpoint before makes that version again.
        """
        self.writing.wait()
        latest = self.checkpoints.latest()
        if (latest.step if latest else 0) < self.learner.step == self.version.step:
            self._make_durable()
        log.info("exits as asked", step=self.learner.step)

    def _make_durable(self) -> None:
        """Copies the published weights and the training state. A thread writes them while the loop continues."""
        self.writing.wait()
        started, position, copied = time.monotonic(), self.position, self.sender.copy()
        self.archive.flush()
        saved = self.learner.save(self._written(partial(self.checkpoints.draft, position.step)))
        self.writing.start(partial(self._finish, position, copied, saved, started))

    def _keep_weights(self) -> None:
        """Writes the published weights in a thread."""
        self.writing.wait()
        self.writing.start(partial(self._finish_weights, self.position, self.sender.copy()))

    def _finish_weights(self, position: Position, copied: Future[Packed]) -> None:
        self._written(partial(self.checkpoints.draft, position.step))
        digests = self._export_draft(position.step, copied)
        folder = self._written(partial(self.checkpoints.commit_weights, position, digests))
        log.info("weights written", step=position.step)
        self._set_pointer(exported=folder / EXPORT)

    def _export_draft(self, step: int, copied: Future[Packed]) -> dict[str, str]:
        """Writes weights into the draft of a step. Returns path below it -> digest."""
        digests = self.export(self.checkpoints.drafted(step) / EXPORT, copied)
        return {f"{EXPORT}/{name}": digest for name, digest in digests.items()}

    def _finish(self, position: Position, copied: Future[Packed], saved: Future[dict[str, str]],
                started: float) -> None:
        """Makes the checkpoint durable, then retires its episodes, unless an object store has yet to get it."""
        digests = self._export_draft(position.step, copied)
        digests |= saved.result(self.config.learner.collective_s)
        folder = self._written(partial(self.checkpoints.commit, position, digests))
        log.info("checkpoint written", step=position.step, seconds=time.monotonic() - started)
        self.observer.checkpointed(time.time())
        self._set_pointer(exported=folder / EXPORT)
        self.retirement.durable = position.step
        self.retirement.retire()

    def _retire_rest(self) -> None:
        """Returns once the newest checkpoint is in the object store.

        There is no deadline, since a large upload takes long: the driver ends the run if the store fails for too long.
        """
        self.writing.wait()
        while self.retirement.pending:
            time.sleep(MIRROR_LOOK_S)
            self.fence()
            self.retirement.retire()

    def export(self, folder: Path, copied: Future[Packed] | None = None) -> dict[str, str]:
        """Writes `copied`, or the published weights, into a folder that transformers and vLLM load.

        Returns what write_export does.
        """
        packed = (copied or self.sender.copy()).result(self.config.learner.collective_s)
        return self._written(partial(self.learner.write, folder, unpack(packed.manifest, packed.buffer)))

    def _written(self, write: Callable[[], Any]) -> Any:
        """Returns the result of `write` once the disk takes it. Raises LeaseLost if another learner begins, and
        DeadlineExceeded."""
        def fenced() -> Any:
            self.fence()
            return write()

        return retry_files(fenced, seconds=self.config.learner.collective_s, what="no file could be written")

    def fence(self) -> None:
        """Raises LeaseLost if another learner has begun. Called before files change, because files have no lease."""
        self.store.leases.renew(self.lease)


@contextmanager
def counted_attempt(store: Store, lease: Lease, manifest: Manifest, *, incarnation: int, limit: int) -> Iterator[None]:
    """Counts its block, the training on one manifest, as an attempt. Raises UserError once `limit` attempts failed."""
    failed, cause = store.steps.attempt(lease, manifest.step, incarnation)
    if failed >= limit:
        raise _too_many_attempts(manifest, failed, cause or SILENT)
    try:
        yield
    except Exception as error:
        cause = in_short(error)
        store.steps.attempt_failed(lease, manifest.step, cause)
        if failed + 1 >= limit:
            raise _too_many_attempts(manifest, failed + 1, cause) from error
        raise
    store.steps.attempt_succeeded(lease, manifest.step)


def check_numbers(step: int, groups: Sequence[Sequence[Episode]]) -> None:
    """Raises UserError for an episode with an extreme_number. Only older versions of gagpo commit such episodes."""
    for episode in chain.from_iterable(groups):
        if number := episode.extreme_number:
            raise UserError(
                f"learner step {step} cannot be trained: episode {episode.ticket.id} ({episode.ticket.task}) has "
                f"{number}, and at most {LARGEST_REWARD:g} in size is taken",
                f"leave the groups of this step out by --resume --skip-step {step}")


def _too_many_attempts(manifest: Manifest, failed: int, cause: str) -> UserError:
    return UserError(
        f"learner step {manifest.step} failed {failed} times on {', '.join(manifest.groups)} ({cause})",
        "continue with --resume after a change of learner.token_budget, learner.ranks or learner.gpus, or leave these "
        f"groups out by --resume --skip-step {manifest.step}")


def _archive_rows(groups: Groups, report: StepReport) -> list[ArchiveRow]:
    """Returns the rows of a learner step for the archive, in the order of its groups."""
    turns = iter(report.logprobs)
    return [
        ArchiveRow(episode=episode, outcome="trained",
                   columns=credit_columns(credit, k) | {"learner_logprobs": list(islice(turns, len(episode.steps)))})
        for group, credit in zip(groups, report.credits, strict=True) for k, episode in enumerate(group)]


class Retirement:
    """Retires the episodes of steps up to the newest durable checkpoint.

    `mirrored` returns the step of the newest checkpoint in the object store, which limits retirement too; None: there
    is no object store.
    """

    def __init__(self, store: Store, lease: Lease, mirrored: Callable[[], int] | None) -> None:
        self._store, self._lease, self._mirrored = store, lease, mirrored
        self._retired = 0
        self.durable = 0
        """Learner step of the newest checkpoint."""

    def restored(self, step: int) -> None:
        """Notes that the learner continues after `step`. An earlier process may have died before it retired that step.
        """
        self.durable, self._retired = step, self._store.counts().retired_step

    @property
    def pending(self) -> bool:
        """Whether episodes of a durable step are still in Redis."""
        return self._retired < self.durable

    @property
    def due(self) -> bool:
        """Whether some of them can be retired now."""
        return self._retired < self._replaceable()

    def retire(self) -> None:
        """Retires the episodes that no replay can need."""
        step = self._replaceable()
        if self._retired < step:
            log.info("episodes retired", step=step, bytes=self._store.steps.retire(self._lease, step),
                     bodies=self._store.sweep())
            self._retired = step

    def _replaceable(self) -> int:
        if self._mirrored is None or not self.pending:
            return self.durable
        return min(self.durable, self._mirrored())
