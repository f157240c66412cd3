"""A training run from its config to its report, stage by stage.

    cold start ▸ RL (topology + rollout workers + learner + controller) ▸ more cold start ▸ panel ▸ report

Each stage leaves its result in the run's folder and is skipped when it is there, so --resume goes on at any point.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.console.progress import ProgressView
from deploy.launch.monitoring import monitoring
from deploy.launch.publishing import publish_folder
from deploy.launch.task_sets import TaskSets
from deploy.launch.topology import Topology, topology
from deploy.report.page import write_report
from deploy.runs.comparison import COLD, MORE, TRAINED, as_lines, compare
from deploy.runs.folder import RunFolder
from deploy.runs.history import GrowingRows
from deploy.runs.sinks import Sinks, sinks
from learner.checkpoint import Checkpoints
from services.config.tree import Config
from services.controller.controller import Controller, Hooks
from services.controller.evaluation import clear
from services.controller.tickets import EvalRequest, TaskStream, TrainTickets
from services.records import Episode, Version
from services.store.archive import ArchiveRow, EpisodeArchive
from services.telemetry.metrics_file import append_row, drop_rows, read_evaluations, read_rows

CONTROLLER_LEASE_S = 30.0


def curve_label(step: int) -> str:
    """What the evaluation of a learner step is called."""
    return f"step-{step:06d}"


def _will_it_stay(runs_dir: Path) -> str:
    """A submitted job starts in Ray's copy of the working directory, which Ray deletes some time after the job."""
    if runs_dir.is_absolute() or "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        return ""
    return ": Ray's own copy of the working directory, and it goes with it; keep the run by an absolute runs_dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Everything the stages share."""

    config: Config
    folder: RunFolder
    run: str
    panels: TaskSets
    progress: ProgressView

    def execute(self) -> list[str]:
        """All stages; returns the lines of the final table (empty without a panel)."""
        self.progress.note(f"folder {self.folder.path.absolute()}{_will_it_stay(self.config.runs_dir)}")
        self._settle()
        cold = self.cold_start()
        if not self.rl_is_done() or self.unplayed():
            self.folder.summary.unlink(missing_ok=True)
            self._run(cold)
        return self.report()

    def _settle(self) -> None:
        """Before anything starts: the newest checkpoint is whole, and no evaluation is of weights that are gone."""
        if self.rl_is_done():
            return
        found = self._checkpoints().newest_whole()
        drop_rows(self.folder.evaluations, after_step=found.step if found else 0)

    def _run(self, cold: Path) -> None:
        with ExitStack() as stack, topology(
                self.config, run=self.run, folder=self.folder.path, config_file=self.folder.config_file,
                note=self.progress.note) as parts:
            tell = stack.enter_context(sinks(self.config, self.folder.path, self.run))
            controller = self.controller(parts, tell)
            with monitoring(parts, controller.telemetry, self.folder, note=self.progress.note):
                for index in range(self.config.rollout.workers):
                    self.progress.stage(f"starting rollout worker {index} (vLLM)")
                    parts.supervisor.add(parts.rollout_worker(index, cold))
                if not self.rl_is_done():
                    self.train(parts, controller, cold)
                self.panel(parts, controller, cold)
            parts.store.release(controller.lease)

    def cold_start(self) -> Path:
        """The policy to start from: the model given, or a cold start's."""
        if not self.config.sft.enabled and self.config.model.path is not None:
            return self.config.model.path
        return self._sft(self.folder.cold_model, minutes=self.config.sft.minutes, continue_from=None)

    def _sft(self, out: Path, *, minutes: float, continue_from: Path | None) -> Path:
        from deploy.training.cold_start import cold_start

        if not (out / "sft.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            cold_start(self.config, out, minutes=minutes, continue_from=continue_from, report=self.progress.note,
                       passing=self.progress.passing)
        return out

    def controller(self, parts: Topology, tell: Sinks) -> Controller:
        """Wired to this run's folder and panels."""
        lease = parts.store.acquire("controller", self.run, ttl_s=CONTROLLER_LEASE_S)
        parts.store.reissue(lease)
        clear(parts.store, lease)
        archive = EpisodeArchive(self.folder.path / "episodes")

        def evaluated(summary: dict[str, Any], episodes: list[Episode]) -> None:
            self.keep_evaluation(summary, episodes, archive)
            tell.evaluation(summary)

        return Controller(
            config=self.config, store=parts.store, lease=lease, supervisor=parts.supervisor,
            tickets=TrainTickets(config=self.config, tasks=TaskStream(self.panels.train, self.config.seed)),
            request=self.evaluation_of,
            hooks=Hooks(note=self.progress.note, evaluated=evaluated, task_type=self.panels.task_type,
                        tick=self._follow_metrics(tell), dropped=archive.write_dropped, playing=self.progress.playing),
        )

    def keep_evaluation(self, summary: dict[str, Any], episodes: list[Episode], archive: EpisodeArchive) -> None:
        """Into evaluations.jsonl, with what played it; its episodes into the archive, its score to the checkpoint."""
        summary |= {"env": self.panels.env_name, "engine": self.panels.engine}
        append_row(self.folder.evaluations, summary)
        part = f"{summary['label']}-T{summary['temperature']:g}"
        archive.write(summary["step"], [ArchiveRow(episode=e, outcome="evaluated") for e in episodes], part=part)
        archive.flush()
        if summary["label"].startswith("step-") and summary["step"]:  # step 0 is the cold start, no checkpoint
            self._checkpoints().record_score(summary["step"], summary["success_rate"])
        self.progress.evaluation(summary)

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder.path / "checkpoints", self.config.checkpoint.keep)

    def _durable_step(self) -> int:
        newest = self._checkpoints().latest()
        return 0 if newest is None else newest.step

    def _follow_metrics(self, tell: Sinks) -> Callable[[], None]:
        """Shows each line that the learner adds to metrics.jsonl."""
        growing = GrowingRows(self.folder.metrics)
        shown = len(growing.rows())

        def tick() -> None:
            nonlocal shown
            lines = growing.rows()
            for line in lines[min(shown, len(lines)):]:  # fewer where a restarted learner takes steps again
                self.progress.step(line)
                tell.step(line)
            shown = len(lines)

        return tick

    def evaluation_of(self, version: Version) -> EvalRequest | None:
        """The curve: every eval.every steps, and at the last one, each once its checkpoint is there to be the best."""
        if not self.config.evaluates(version.step) or version.step > self._durable_step():
            return None
        return EvalRequest(label=curve_label(version.step), version=version, split=self.panels.validation_split,
                           tasks=self.panels.validation, temperature=self.config.eval.temperature,
                           seed=self.config.seed, max_steps=self.config.env.max_steps)

    def rl_is_done(self) -> bool:
        """All steps are taken, the result is exported, and the last step is evaluated where that is asked for."""
        newest, result = self._checkpoints().latest(), self.folder.trained_model / "config.json"
        if newest is None or newest.step < self.config.steps or not result.exists():
            return False
        labels = {e["label"] for e in read_evaluations(self.folder.evaluations)}
        return not self.config.evaluates(newest.step) or curve_label(newest.step) in labels

    def train(self, parts: Topology, controller: Controller, cold: Path) -> None:
        """RL until the learner has taken its steps and exported the result."""
        for stale in (self.folder.trained_model, self.folder.more_model):  # of a run that is now longer
            shutil.rmtree(stale, ignore_errors=True)
        self.progress.stage("reinforcement learning")
        if done := [e["step"] for e in read_evaluations(self.folder.evaluations) if e["label"].startswith("step-")]:
            parts.store.mark_evaluated(controller.lease, max(done))  # a Redis that is new knows of none
        learner = parts.learner(cold)
        parts.supervisor.add(learner)
        controller.run(learner)
        parts.supervisor.remove(learner)

    def unplayed(self) -> dict[str, list[float]]:
        """Policy of the final table -> temperatures at which it has not met the held-out games yet."""
        policies = [COLD, TRAINED, MORE] if self.config.eval.compare_cold_start else [COLD, TRAINED]
        games = len(self.panels.heldout)
        done = {(e["label"], e["step"], e["temperature"]) for e in read_evaluations(self.folder.evaluations)
                if e["tasks"] + e["dropped"] == games}
        left = {label: [t for t in self.config.eval.panel_temperatures if (label, self._steps_of(label), t) not in done]
                for label in policies if games}
        return {label: temperatures for label, temperatures in left.items() if temperatures}

    def _steps_of(self, label: str) -> int:
        """Learner steps behind a policy of the table, or beside which it stands."""
        return 0 if label == COLD else self.config.steps

    def panel(self, parts: Topology, controller: Controller, cold: Path) -> None:
        """Before, after, and the same minutes of more cold start, on held-out games that nothing was tuned on."""
        for label, temperatures in self.unplayed().items():
            controller.telemetry.state("starting", f"prepares {label}")
            model = self._policy(label, cold)
            self.progress.stage(f"held-out games: {label.removeprefix('panel-')}")
            version = publish_folder(parts, model, holder=self.run, step=self._steps_of(label))
            controller.evaluate_now([
                EvalRequest(label=label, version=version, split=self.panels.heldout_split, tasks=self.panels.heldout,
                            temperature=t, samples=self.config.eval.panel_samples, seed=self.config.seed + 1,
                            max_steps=self.config.env.max_steps)
                for t in temperatures
            ])

    def _policy(self, label: str, cold: Path) -> Path:
        if label != MORE:
            return cold if label == COLD else self.folder.trained_model
        minutes = self.rl_seconds() / 60
        self.progress.stage(f"the same {minutes:.1f} minutes of more cold start, for comparison")
        return self._sft(self.folder.more_model, minutes=minutes, continue_from=cold)

    def rl_seconds(self) -> float:
        """Wall time of all learner steps, waiting for episodes included."""
        return sum(value for line in read_rows(self.folder.metrics)
                   for key, value in line.items() if key.startswith("seconds/"))

    def report(self) -> list[str]:
        """The final table, report.html and figures."""
        comparison = compare(read_evaluations(self.folder.evaluations))
        lines = as_lines(comparison, env=self.panels.env_name) if comparison else []
        panel = {"split": self.panels.heldout_split, "games": len(self.panels.heldout),
                 "digest": self.panels.heldout_digest}
        summary = {"format": 1, "table": lines, "engine": self.panels.engine, "heldout": panel}
        self.folder.summary.write_text(json.dumps(summary, indent=1) + "\n")
        page, _ = write_report([self.folder.path], self.folder.path)
        return [*lines, f"report: {page.absolute()}"]
