"""Reports what the training loop does: heartbeat, log, and the lines of metrics.jsonl and the ledger.

The loop names its moments to an Observer (waiting, training, trained, published) and contains no other reporting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from learner.collect import WAITS
from learner.metrics.gauges import step_taken
from learner.metrics.step_metrics import metrics_row
from learner.rows.batch import Groups
from learner.trainer import StepReport
from services.records import Manifest, Version
from services.telemetry.energy import EnergyMeter
from services.telemetry.heartbeat import Pulse
from services.telemetry.logs import get_logger
from services.telemetry.metrics_file import check_metrics, drop_rows, keep_row

LEDGER = "ledger.jsonl"
"""File beside metrics.jsonl with one line for each learner step: its manifest."""
log = get_logger("learner")


@dataclass(slots=True, kw_only=True)
class Observer:
    """Follows the loop from moment to moment and measures the time between them."""

    metrics: Path
    pulse: Pulse = field(default_factory=lambda: Pulse("learner-0", "learner"))
    patience_s: float = 0.0
    """Longest wait for a folder that cannot be written (learner.collective_s)."""
    _phase: str = ""
    _entered: float = 0.0
    _began: float = 0.0
    """When the row before was written, or 0 before the loop has waited for its first groups."""
    _seconds: dict[str, float] = field(default_factory=dict)
    _manifest: Manifest | None = None
    _groups: Groups = ()
    _report: StepReport | None = None
    _doubted: bool = False
    _energy: EnergyMeter = field(default_factory=EnergyMeter)

    @property
    def ledger(self) -> Path:
        """The file with one line for each learner step."""
        return self.metrics.with_name(LEDGER)

    def restored(self, step: int, *, incarnation: int, found: bool, durable: float) -> None:
        """The learner continues after `step`. `durable`: Unix time of its checkpoint, or of the start without one."""
        for path in (self.metrics, self.ledger):
            drop_rows(path, after_step=step, wait_s=self.patience_s)
        self.checkpointed(durable)
        log.info("restored" if found else "no checkpoint", step=step, incarnation=incarnation)

    def forgotten(self, step: int, *, next_group: int, incarnation: int) -> None:
        """The store is about to be reset to a checkpoint, and forgets which groups before `next_group` were dropped."""
        log.warning("Redis and the checkpoint disagree: work in flight is issued anew", step=step)
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
        """The weights have moved. They are published once the version before them is evaluated."""
        assert self._manifest is not None
        self._report, step = report, self._manifest.step
        log.info("step trained", step=step, groups=len(self._groups), replayed=replayed)
        if report.doubt and not self._doubted:  # one line, until the two have agreed again
            log.warning("learner and sampler disagree about the sampler's tokens", step=step, reason=report.doubt)
        self._doubted = bool(report.doubt)
        self._enter("evaluation", "waits for the evaluation of the version before")

    def publishing(self) -> None:
        """The version before is evaluated."""
        self._enter("publish", "publishes")

    def published(self, version: Version) -> None:
        """The new weights are current: the step gets its lines in metrics.jsonl and in the ledger."""
        assert self._manifest is not None
        assert self._report is not None
        self._enter("checkpoint", "writes checkpoints and archives")
        # A step with a checkpoint is never replayed, so its lines are written before the checkpoint. The seconds of the
        # checkpoint therefore go into the next line.
        seconds = {"checkpoint": 0.0} | self._seconds
        wall, self._began, self._seconds = self._entered - self._began, self._entered, {}
        measured = self._report.metrics | {"energy_joules": self._energy.taken(), "step_seconds": wall}
        row = metrics_row(version, self._manifest, self._groups, measured, seconds)
        check_metrics(row)
        keep_row(self.ledger, msgspec.to_builtins(self._manifest), wait_s=self.patience_s)
        keep_row(self.metrics, row, wait_s=self.patience_s)
        step_taken(self.pulse, row, self._report.credits, self._report.utilization)

    def checkpointed(self, at: float) -> None:
        """The newest checkpoint was durable at this Unix time."""
        self.pulse.meters("gagpo_learner_checkpoint_timestamp_seconds").set(at)

    def _enter(self, phase: str, doing: str) -> None:
        """Ends the phase before. Phases without a name are timed elsewhere."""
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now - self._entered
        self._phase, self._entered = phase, now
        self.pulse.doing(doing)
