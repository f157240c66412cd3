"""The training loop, on rank 0.

    wait      for the manifest of the next step: groups_per_step finished groups, committed before any weight changes
    train     credit, loss, optimizer
    publish   after the evaluation of the version that it replaces (services/weights/channel.py)
    persist   a checkpoint when it is due, after which episodes are retired; else the weights of an evaluated step

Three things become durable in a fixed order: the archive, the checkpoint, the retirement of its episodes. With an
object store the last waits until the checkpoint is there too, and nothing else does. The loop's thread writes the
archive and copies the state to host memory. A second thread does the rest while the loop continues.
After a crash between any two, the previous checkpoint is valid, and everything that follows it can be replayed.

If the manifest of a step exists, the step is a replay: it trains on the same groups in the same order.
If `check` raises Leaving, the loop makes a checkpoint of what it has published and returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from learner.attempts import check_numbers, counted_attempt
from learner.checkpoints.background import Background
from learner.checkpoints.checkpoint import EXPORT, Checkpoints, Position
from learner.checkpoints.retirement import Retirement
from learner.collect import GroupCollector
from learner.metrics.observer import Observer
from learner.rows.archived import trained_rows
from learner.trainer import Learner, StepReport
from services.config.tree import Config
from services.patience import while_folder_away
from services.records import Manifest, Version
from services.store.archive import EpisodeArchive
from services.store.lease import Lease
from services.store.store import Store
from services.telemetry.logs import bind, get_logger
from services.weights.canary import Canary
from services.weights.channel import WeightSender
from services.weights.pack import Packed, unpack

LOOK_EVERY_S = 5.0
"""Seconds between two looks whether the store still names the current version."""
MIRROR_LOOK_S = 0.5
"""Seconds between two looks whether the object store has the last checkpoint."""
log = get_logger("learner")


class Leaving(Exception):
    """The run was asked to end early. It is raised between learner steps, never inside one."""


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """Trains, publishes and persists, step by step.

    `sender` hands new weights to the samplers. `before_publish` returns once the current version may be replaced, and
    calls the function that it is given while it waits.
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
    """The newest model on disk; None before the first, when it is the learner's first model."""
    writing: Background = field(init=False)
    retirement: Retirement = field(init=False)
    _pointing: threading.Lock = field(default_factory=threading.Lock)
    _canary: Canary | None = None
    """That of the last snapshot."""
    _looked: float = 0.0

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
        """Loads the newest whole checkpoint and begins an incarnation. If the store disagrees, it is reset."""
        found = self.checkpoints.newest_whole(wait_s=self.config.learner.collective_s)
        if found is not None:
            self.position = found
            self.learner.load(self.checkpoints.folder(found.step))
            self.exported = self.checkpoints.folder(found.step) / EXPORT
        at = self.position
        self.incarnation = self.store.state.incarnation(self.lease, above=at.incarnation)
        self.observer.restored(at.step, incarnation=self.incarnation, found=found is not None,
                               durable=self.checkpoints.written(at.step) if found else time.time())
        if not self.store.steps.agrees_with(at.step):
            # The ledger first: if it lacks a reset, an audit reports the groups as lost.
            self.observer.forgotten(at.step, next_group=at.next_group, incarnation=self.incarnation)
            self.store.steps.reset_to(self.lease, at.step, at.next_group, trained=at.trained)
        self.retirement.restored(at.step)

    def next_manifest(self) -> tuple[Manifest, bool]:
        """Returns the manifest of the next step, and whether an earlier process of the learner has committed it."""
        step = self.learner.step + 1
        for manifest in self.store.steps.manifests(self.learner.step):
            if manifest.step == step:
                return manifest, True
        groups = self._collector().collect(step)
        proposed = Manifest(step=step, incarnation=self.incarnation, groups=groups, drops=[])
        return self.store.steps.begin(self.lease, proposed), False

    def _collector(self) -> GroupCollector:
        return GroupCollector(config=self.config, store=self.store, lease=self.lease, archive=self.archive,
                              check=self._check, heartbeat=self.observer.heartbeat)

    def train(self, manifest: Manifest) -> tuple[StepReport, Version]:
        """Takes one learner step and writes its episodes to the archive. Raises UserError if it failed too often.

        Returns the version of the new weights, of which the sender has a snapshot.
        """
        limit = self.config.learner.step_attempts
        # The wait for the GPUs is no attempt: asked to leave meanwhile, the learner has not failed.
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
        self.archive.write(manifest.step, trained_rows(groups, report.credits, report.logprobs))
        return report, version

    def _check(self) -> None:
        self.check()
        self.sender.keep()
        self.writing.check()
        if self.version.incarnation and time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._looked, found = time.monotonic(), self.store.state.version()
            if found is None or found[0] != self.version:  # Redis may lose the last second before its machine died
                log.warning("Redis has lost the current version; it is named again", version=self.version.short)
                self._point()
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
        self.sender.send(version, lambda version: self._point(version=version, canary=self._canary))
        if self.config.evaluates(version.step):
            self.sender.copy()  # for workers that start during the evaluation, in which the next version waits
        bind(version=version.short)
        log.info("published")

    def _point(self, *, version: Version | None = None, canary: Canary | None = None,
               exported: Path | None = None) -> None:
        """Names a version in the store as the current one, and an export for workers that cannot fetch its weights.

        None keeps the present version with its canary, or the export. Both threads call this, each for one of the two.
        """
        with self._pointing:
            self.version, self.exported = version or self.version, exported or self.exported
            self.canary = canary or self.canary
            self.store.state.publish_version(self.lease, self.version, str(self.exported or self.learner.model_path),
                                             self.canary)

    def persist(self) -> None:
        """Begins a checkpoint if one is due, else to keep the weights if the step is evaluated.

        The archive is made durable first: a step with a checkpoint is never replayed, so nothing would write its file
        again. The best weights can be exported because those of every evaluated step are written. A replay leaves the
        weights of a step alone that were evaluated already: the score is theirs.
        """
        step, adapters = self.learner.step, self.config.learner.lora.rank > 0
        evaluates = self.config.evaluates(step)
        # An export has the adapters themselves too, which are in the state. It is hardly larger than the weights.
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
        found = self.checkpoints.latest()
        durable = 0 if found is None else found.step
        if durable < self.learner.step == self.version.step:
            self._make_durable()
        log.info("left as asked", step=self.learner.step)

    def _make_durable(self) -> None:
        """Copies the published weights and all that goes with them; the rest is done beside the loop."""
        self.writing.wait()
        started, position, copied = time.monotonic(), self.position, self.sender.copy()
        self.archive.flush()
        saved = self.learner.save(self._written(partial(self.checkpoints.draft, position.step)))
        self.writing.start(partial(self._finish, position, copied, saved, started))

    def _keep_weights(self) -> None:
        """Writes the published weights alongside the loop."""
        self.writing.wait()
        self.writing.start(partial(self._finish_weights, self.position, self.sender.copy()))

    def _finish_weights(self, position: Position, copied: Future[Packed]) -> None:
        """Makes the weights durable."""
        self._written(partial(self.checkpoints.draft, position.step))
        digests = self._export_draft(position.step, copied)
        folder = self._written(partial(self.checkpoints.commit_weights, position, digests))
        log.info("weights written", step=position.step)
        self._point(exported=folder / EXPORT)

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
        self._point(exported=folder / EXPORT)
        self.retirement.durable = position.step
        self.retirement.retire()

    def _retire_rest(self) -> None:
        """Returns once the newest checkpoint is in the object store. It has no deadline, since a large one takes its
        time: the driver ends the run if the store has failed for too long."""
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
        """Returns the result of `write`, once the disk has room. Another learner may begin meanwhile: LeaseLost."""
        def fenced() -> Any:
            self.fence()
            return write()

        return while_folder_away(fenced, seconds=self.config.learner.collective_s, what="no file could be written")

    def fence(self) -> None:
        """Raises LeaseLost if another learner has begun. Called before files change, because files check no lease."""
        self.store.leases.renew(self.lease)
