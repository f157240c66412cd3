"""Makes the runs of an experiment: `gagpo train` in child processes. Only a record of each run is kept.

A run with a record is done. A run without one is made from its start. So an interrupted experiment can continue.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from deploy.runs.folder import RunFolder, locked
from deploy.training.child_runs import FAILURES_IN_A_ROW, POLL_S, Child, ChildFailed
from deploy.training.evaluation import erase_keys
from deploy.training.start import saying_how_to_continue
from deploy.training.sweep import give_evaluations
from lab.experiments.credit import records
from lab.experiments.credit.common import COLD_START, keep_cold_evaluations
from lab.experiments.credit.design import PlannedRun, config_of
from lab.experiments.credit.progress import RunsProgress
from services.config.file import dump_config
from services.config.redis import child_secrets
from services.config.tree import Config
from services.errors import GagpoError, UserError
from services.files import Damaged, lock_alone
from services.outages import retry_files


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Locks `folder` until the block or the process ends. Raises UserError if another experiment uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "experiment.lock").open("w", encoding="utf-8") as lock:
        lock_alone(lock, folder, elsewhere="set runs_dir to storage with flock", taken=UserError(
            f"another experiment makes its runs in {folder}", "wait for it, or set runs_dir"))
        yield


def path_of(out: Path, run: PlannedRun) -> Path:
    """Returns the path of the record of a run."""
    return out / f"{run.name}.json"


def left(out: Path, runs: Sequence[PlannedRun], config: Config, common: Mapping[str, Any]) -> list[PlannedRun]:
    """Returns the runs without a record. Raises UserError for a record with other settings or another cold start."""
    known = {(record.arm, record.seed): record for record in records.read_records(out)}
    for run in runs:
        record = known.get((run.arm, run.seed))
        if record is None:
            continue
        file = path_of(out, run)
        records.same_settings(record.settings, config_of(run, config, cold_start=""), where=str(file))
        if record.cold_start != common["cold_start"]:
            raise UserError(f"{file} began with another cold start", "delete it, or give another --out")
    return [run for run in runs if (run.arm, run.seed) not in known]


class RunsFailed(GagpoError):
    """Runs of an experiment failed. `failures`: one error for each of them."""

    def __init__(self, failures: Sequence[ChildFailed]) -> None:
        super().__init__(f"{len(failures)} runs failed: {', '.join(failure.name for failure in failures)}")
        self.failures = list(failures)


@dataclass(slots=True, kw_only=True)
class Runner:
    """Makes runs in the given order, `parallel` at a time."""

    config: Config
    out: Path
    common: dict[str, Any]
    progress: RunsProgress
    parallel: int = 1
    hours: float = math.inf
    """Hours after which no run is started."""
    _children: dict[PlannedRun, tuple[Child, str]] = field(default_factory=dict)
    """Runs in progress, each with the digest of the code at its start."""
    _failures: list[ChildFailed] = field(default_factory=list)
    _in_a_row: int = 0
    """Failures since the last run that finished. From FAILURES_IN_A_ROW on it stays, whatever finishes."""

    def make(self, runs: Sequence[PlannedRun]) -> int:
        """Makes the runs. Returns how many were not started because time was up.

        Raises RunsFailed at the end if some failed. After FAILURES_IN_A_ROW no run is started, and those that go on
        are finished.
        """
        waiting = list(runs)
        with saying_how_to_continue("the same command"):
            try:
                self._make(waiting, time.monotonic() + 3600 * self.hours)
            finally:
                for child in self._going():
                    child.tell_to_stop()
                for child in self._going():
                    child.stop()
        if self._failures:
            raise RunsFailed(self._failures)
        return len(waiting)

    def _make(self, waiting: list[PlannedRun], last_start: float) -> None:
        """Takes runs from `waiting` until time is up. `last_start`: by the monotonic clock."""
        def may_start() -> bool:
            return bool(waiting) and self._in_a_row < FAILURES_IN_A_ROW and time.monotonic() < last_start

        while self._children or may_start():
            while len(self._children) < self.parallel and may_start():
                self._start(waiting.pop(0))
            self._collect()
            self.progress.running(self._going())
            time.sleep(POLL_S)

    def _going(self) -> list[Child]:
        return [child for child, _ in self._children.values()]

    def _start(self, run: PlannedRun) -> None:
        config = self._config(run)
        with locked(config):  # somebody may go on with it by hand
            self._erase_keys(config)
            shutil.rmtree(config.run_dir, ignore_errors=True)  # left by an interrupted run
        give_evaluations(RunFolder(config.run_dir), self.common["cold_evaluations"])
        file = self.config.run_dir / f"{run.name}.yaml"
        dump_config(config, file)
        child = Child(run.name, ["train", "--config", str(file)], log=self.config.run_dir / f"{run.name}.log",
                      leave_s=config.supervision.leave_seconds, secrets=child_secrets(config.redis))
        self._children[run] = child, records.code_digest()
        child.start()

    def _collect(self) -> None:
        for run, (child, code) in list(self._children.items()):
            try:
                if not child.ended():  # a run without progress ends itself, however long others take
                    continue
            except ChildFailed as error:
                del self._children[run]
                self._failures.append(error)
                self._in_a_row += 1
                self.progress.note(f"{run.name} failed")
                continue
            del self._children[run]
            self._in_a_row = 0 if self._in_a_row < FAILURES_IN_A_ROW else self._in_a_row
            config = self._config(run)
            record = records.record_of(config.run_dir, arm=run.arm, config=config, minutes=child.seconds / 60,
                                       common=self.common, code=code)
            retry_files(partial(self._keep, run, record), seconds=config.learner.collective_s,
                        what=f"{path_of(self.out, run)} could not be written", note=self.progress.note)
            self._erase_keys(config)
            shutil.rmtree(config.run_dir)
            self.progress.finished(run.name, child.seconds, _headline(record))

    def _erase_keys(self, config: Config) -> None:
        """Deletes a run's keys from a shared Redis. Call it before its folder is deleted, which has their name."""
        folder = RunFolder(config.run_dir)
        try:
            identity = folder.identity()
        except Damaged as error:
            self.progress.note(f"{error}; keys of this run stay in a Redis that it shared")
            return
        if identity is not None:
            erase_keys(identity.run, folder.config_file, ours=config.redis, what=config.name, note=self.progress.note)

    def _keep(self, run: PlannedRun, record: records.Record) -> None:
        """Writes what is left of a run whose folder will be deleted. It may be called again."""
        records.write(path_of(self.out, run), record)
        keep_cold_evaluations(self.out, self.common, RunFolder(self._config(run).run_dir))

    def _config(self, run: PlannedRun) -> Config:
        return config_of(run, self.config, cold_start=str(self.out / COLD_START))


def _headline(record: records.Record) -> str:
    last = record.evaluations[-1]
    return f"{last['success_rate']:.1%} on {last['split']}"
