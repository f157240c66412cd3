"""Executes a training run from its config to its report, stage by stage.

    cold start ▸ RL (topology + rollout workers + learner + controller) ▸ more cold start ▸ held-out games ▸ report

Each stage writes its result into the run's folder, and is skipped if the result exists. So --resume continues anywhere.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from deploy.console.progress import ProgressView
from deploy.launch.monitoring import monitoring
from deploy.launch.planning.task_sets import TaskSets
from deploy.launch.scaling import Scaling
from deploy.launch.topology import Topology, publish_folder, topology
from deploy.members.private_ray import RayLost
from deploy.members.ray_actor import LearnerRanks
from deploy.report.page import write_report
from deploy.runs.comparison import as_lines, compare, evaluation_kind, next_commands, verdicts
from deploy.runs.folder import RunFolder
from deploy.runs.health import HealthWarning, warnings
from deploy.runs.history import GrowingRows, RunHistory
from deploy.runs.sinks import Sinks, sinks
from deploy.runs.step_times import as_line, step_times
from deploy.training.loading import Loading
from learner.checkpoints.checkpoint import Checkpoints
from services.amounts import span
from services.config.tree import Config
from services.controller.controller import Controller, Hooks
from services.controller.evaluation import clear
from services.controller.skip import skip_step
from services.controller.task_streams import ContrastSampler
from services.controller.telemetry import Telemetry
from services.controller.tickets import EvalRequest, TrainTickets
from services.files import write_whole
from services.outages import LastValue, retry_files
from services.records import Episode, Version
from services.store.archive import ArchiveRow, EpisodeArchive, evaluation_part
from services.store.lease import Lease
from services.telemetry.evaluations import COLD, MORE, TRAINED, curve_label, on_curve, title_of
from services.telemetry.metrics_file import MetricsRow, append_row, drop_rows, read_evaluations, read_metrics, read_rows


class MetricsFollower:
    """Calls `show` with the new rows of a file. Rows that were there at the start count as shown.

    While the file cannot be read there are no new rows. After `outage_s` seconds of that, tick() raises.
    """

    def __init__(self, path: Path, show: Callable[[list[MetricsRow]], object], *, outage_s: float) -> None:
        self._rows = LastValue(GrowingRows(path).rows, seconds=outage_s)
        self._show = show
        self._shown = len(self._rows.now())

    def tick(self) -> None:
        """Reads the file once and shows its new rows."""
        rows = self._rows.now()
        new = rows[self._shown:]  # a restarted learner repeats steps, so there may be fewer lines than were shown
        self._shown = len(rows)
        if new:
            self._show(new)


CONTROLLER_LEASE_S = 30.0


def training_seconds(row: MetricsRow) -> float:
    """Returns the seconds for which the learner trained in a row of metrics.jsonl, without waits for others."""
    waits = ("seconds/wait", "seconds/evaluation")
    return sum(value for key, value in row.items() if key.startswith("seconds/") and key not in waits)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One training run, with the values that its stages share."""

    config: Config
    folder: RunFolder
    run: str
    task_sets: TaskSets
    progress: ProgressView
    check: Callable[[], None] = lambda: None  # raises what has ended the copying to an object store
    skip_step: int | None = None
    """The learner step whose groups are left out, because it cannot be trained."""
    _durable: LastValue[int] = field(init=False)
    _kept: LastValue[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        durable = LastValue(self._read_durable_step, seconds=self.config.learner.collective_s)
        object.__setattr__(self, "_durable", durable)
        kept = LastValue(lambda: self._checkpoints().weights_steps(), seconds=self.config.learner.collective_s)
        object.__setattr__(self, "_kept", kept)

    def execute(self) -> list[str]:
        """Runs all stages. Returns the lines to print at the end."""
        self._settle()
        if self._durable.now() or (self.folder.cold_model / "sft.json").exists():
            self.progress.resumed(self._durable.now())
        self._announce(cold_start=self.config.sft.enabled and not (self.folder.cold_model / "sft.json").exists())
        cold = self.cold_start()
        if not self.rl_is_done() or self.unplayed():
            self.folder.summary.unlink(missing_ok=True)
            if not self.rl_is_done():
                self.demonstrate(cold)
            self._run_to_its_end(cold)
        return self.report()

    def _run_to_its_end(self, cold: Path) -> None:
        """Runs RL and the held-out games, in a new private Ray whenever one dies: as --resume would."""
        life = self
        while True:
            try:
                return life._run(cold)
            except RayLost as lost:
                self.progress.note(f"{lost}; starting everything in a new one")
                self._settle()
                self._announce(cold_start=False)
                life = replace(self, skip_step=None)

    def _announce(self, *, cold_start: bool) -> None:
        """Gives the view the number of stages to come and of games after RL, and whether the control is trained."""
        trains, unplayed = not self.rl_is_done(), self.unplayed()
        control = MORE in unplayed and (trains or not (self.folder.more_model / "sft.json").exists())
        # Two stages more: starting the processes, and loading the samplers.
        runs = 2 + trains + len(unplayed) + control if trains or unplayed else 0
        games = len(self.task_sets.heldout) * self.config.eval.panel_samples
        self.progress.expect(cold_start + runs, games=games * sum(map(len, unplayed.values())), control=control)

    def _settle(self) -> None:
        """Drops the evaluations after the newest complete checkpoint, from which RL continues: their steps are taken
        again. The best step is then the best of the evaluations that stay."""
        self._wait_for_folder()
        if self.rl_is_done():
            return
        wait_s, checkpoints = self.config.learner.collective_s, self._checkpoints()
        newest = checkpoints.newest_intact(wait_s=wait_s)
        step = newest.step if newest else 0
        drop_rows(self.folder.evaluations, after_step=step, wait_s=wait_s)
        if (checkpoints.best() or 0) > step:
            checkpoints.choose_best((row["step"], row["success_rate"], evaluation_kind(row))
                                    for row in read_evaluations(self.folder.evaluations) if on_curve(row["label"]))

    def _wait_for_folder(self) -> None:
        """Returns once the run's folder is there. Nothing but the start of a run makes it: a mount that comes back
        would hide what was written into a new one. Raises DeadlineExceeded."""
        retry_files(self.folder.path.stat, seconds=self.config.learner.collective_s,
                    what=f"{self.folder.path} could not be read")

    def _run(self, cold: Path) -> None:
        self.progress.stage("starting Redis, Ray and the environment servers")
        with ExitStack() as stack, topology(
                self.config, run=self.run, folder=self.folder.path, note=self.progress.note) as parts:
            outputs = stack.enter_context(sinks(self.config, self.folder.path, self.run))
            lease = parts.store.leases.acquire("controller", self.run, ttl_s=CONTROLLER_LEASE_S)
            scaling = Scaling(parts, lease, lambda index: parts.rollout_worker(index, cold), note=self.progress.note)
            loading = Loading(parts.supervisor.states, parts.store.state.beats, waiting=self.progress.waiting)
            controller = self.controller(parts, lease, outputs, loading, scaling)
            with monitoring(parts, controller.telemetry, self.folder, note=self.progress.note):
                self.progress.stage("loading the samplers (vLLM)")
                scaling.start()
                if not self.rl_is_done():
                    loading.then(partial(self.progress.stage, "reinforcement learning"))
                    self.train(parts, controller, cold)
                self.heldout(parts, controller, cold, loading)
            parts.store.leases.release(controller.lease)

    def cold_start(self) -> Path:
        """Returns the folder of the policy to start from: model.path without a cold start, else the cold start's."""
        if not self.config.sft.enabled and self.config.model.path is not None:
            return self.config.model.path
        if not (self.folder.cold_model / "sft.json").exists():
            self.progress.stage("cold start")
        return self._sft(self.folder.cold_model, minutes=self.config.sft.minutes,
                         epochs=self.config.sft.epochs, continue_from=None)

    def _sft(self, out: Path, *, minutes: float, epochs: int | None = None, continue_from: Path | None) -> Path:
        from deploy.training.cold_start import cold_start

        self._wait_for_folder()
        if not (out / "sft.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            cold_start(self.config, out, minutes=minutes, epochs=epochs, continue_from=continue_from,
                       report=self.progress.note, passing=self.progress.passing)
        return out

    def demonstrate(self, cold: Path) -> None:
        """Writes the demonstrations that the learner imitates during RL, if it does and they are not there yet."""
        from deploy.training.cold_start import write_demonstrations
        from learner.cold_start.sft_data import DEMONSTRATIONS

        file = self.folder.path / DEMONSTRATIONS
        if self.config.learner.imitation.weight and not file.exists():
            write_demonstrations(self.config, cold, file, report=self.progress.note, passing=self.progress.passing)

    def controller(self, parts: Topology, lease: Lease, outputs: Sinks, loading: Loading,
                   scaling: Scaling) -> Controller:
        """Returns a controller that is wired to this run's folder and task sets."""
        parts.store.reissue(lease)
        clear(parts.store, lease)
        archive = EpisodeArchive(self.folder.path / "episodes", deadline_s=self.config.learner.collective_s)
        history = RunHistory(self.folder, outage_s=self.config.learner.collective_s)  # one for all
        telemetry = Telemetry()
        warn = partial(self.warn, history, telemetry)
        follower = MetricsFollower(self.folder.metrics, lambda lines: self._show(lines, outputs, warn),
                                   outage_s=self.config.learner.collective_s)

        def tick() -> None:
            for one in (self.check, loading.tick, scaling.tick, follower.tick):
                one()

        def evaluated(summary: dict[str, Any], episodes: list[Episode]) -> None:
            self.keep_evaluation(summary, episodes, archive)
            warn()
            outputs.evaluation(summary)

        return Controller(
            config=self.config, store=parts.store, lease=lease, supervisor=parts.supervisor,
            tickets=self._tickets(history),
            request=self.evaluation_of, weights_kept=self.weights_kept, telemetry=telemetry,
            hooks=Hooks(note=self.progress.note, evaluated=evaluated, task_type=self.task_sets.environment.task_type,
                        tick=tick, dropped=archive.write_dropped, playing=loading.after(self.progress.playing),
                        waits=self.progress.waits),
        )

    def _tickets(self, history: RunHistory) -> TrainTickets:
        config, sets = self.config, self.task_sets
        sampler = None if config.learner.task_sampling == "uniform" else ContrastSampler(
            sets.train, sets.environment.task_type, config.seed, staleness=config.learner.staleness,
            rows=lambda: history.metrics)
        return TrainTickets(config=config, tasks=sets.stream(config), sampler=sampler)

    def keep_evaluation(self, summary: dict[str, Any], episodes: list[Episode], archive: EpisodeArchive) -> None:
        """Keeps episodes and score. The row in evaluations.jsonl comes last: it marks the evaluation as done."""
        summary |= {"env": self.task_sets.env_name, "engine": self.task_sets.engine}
        archive.write(summary["step"], [ArchiveRow(episode=e, outcome="evaluated") for e in episodes],
                      part=evaluation_part(summary["label"], summary["temperature"]))
        archive.flush()
        retry_files(partial(self._keep_score, summary), seconds=self.config.learner.collective_s,
                    what=f"{self.folder.evaluations} could not be written")
        self.progress.evaluation(summary)

    def _keep_score(self, summary: dict[str, Any]) -> None:
        if on_curve(summary["label"]) and summary["step"]:  # step 0 is the cold start, which is kept anyway
            self._checkpoints().record_score(summary["step"], summary["success_rate"], evaluation_kind(summary))
        append_row(self.folder.evaluations, summary)

    def warn(self, history: RunHistory, telemetry: Telemetry) -> None:
        """Shows and exports the present health warnings of the run."""
        warnings = {one.rule: one.text for one in self._warnings(history.metrics, history.evaluations)}
        self.progress.warn(warnings | self._hurried(history.metrics))
        telemetry.warned(warnings)

    def _warnings(self, metrics: Sequence[MetricsRow], evaluations: Sequence[MetricsRow]) -> list[HealthWarning]:
        return warnings(metrics, evaluations, self.config.learner.credit, agents=self.config.agent.name is not None)

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder.path / "checkpoints", self.config.checkpoint.keep)

    def _read_durable_step(self) -> int:
        return newest.step if (newest := self._checkpoints().latest()) else 0

    def _show(self, lines: list[MetricsRow], outputs: Sinks, warn: Callable[[], None]) -> None:
        """Shows new lines of metrics.jsonl."""
        for line in lines:
            self.progress.step(line)
            outputs.step(line)
        warn()

    def evaluation_of(self, version: Version) -> EvalRequest | None:
        """Returns the learning curve's evaluation of a version if it is due, else None: it is due every eval.every
        steps and after the last step."""
        if not self.config.evaluates(version.step):
            return None
        return EvalRequest(label=curve_label(version.step), version=version, split=self.task_sets.validation_split,
                           tasks=self.task_sets.validation, temperature=self.config.eval.temperature,
                           seed=self.config.seed, env=self.config.env)

    def weights_kept(self, version: Version) -> bool:
        """Whether the weights of a version are on disk. Those of step 0 are the cold start."""
        return not version.step or version.step in self._kept.now()

    def rl_is_done(self) -> bool:
        """Whether all steps are taken, the trained model is exported, and the last step is evaluated if it must be."""
        newest, result = self._checkpoints().latest(), self.folder.trained_model / "config.json"
        if newest is None or newest.step < self.config.steps or not result.exists():
            return False
        labels = (e["label"] for e in read_evaluations(self.folder.evaluations))
        return not self.config.evaluates(newest.step) or curve_label(newest.step) in labels

    def train(self, parts: Topology, controller: Controller, cold: Path) -> None:
        """Trains until the learner has taken its steps and exported the result."""
        for stale in (self.folder.trained_model, self.folder.more_model):  # results of a shorter run
            shutil.rmtree(stale, ignore_errors=True)
        controller.resume(read_evaluations(self.folder.evaluations))
        if self.skip_step is not None:
            skipped = skip_step(parts.store, controller.lease, self.skip_step, keep=controller.hooks.dropped)
            self.progress.note(f"step {self.skip_step} skips {', '.join(drop.group for drop in skipped)}")
        learner = parts.learner(cold)
        parts.supervisor.add(learner)
        try:
            controller.run(learner)
        except (SystemExit, KeyboardInterrupt) as asked:  # a second one ends the wait for the checkpoint too
            self._leave(learner, by_hand=isinstance(asked, KeyboardInterrupt))
            raise
        parts.supervisor.remove(learner)

    def _leave(self, learner: LearnerRanks, *, by_hand: bool) -> None:
        """Waits until the learner has finished its step and written a checkpoint.

        After Ctrl-C the limit is learner.collective_s, since the user can end the wait by another Ctrl-C. The sender of
        SIGTERM may kill soon after it, so there the limit is supervision.leave_seconds.
        """
        limit = self.config.supervision.leave_seconds
        rows = read_rows(self.folder.metrics)
        takes = f" (about {span(training_seconds(rows[-1]))})" if rows else ""
        ends = "Ctrl-C again ends at once" if by_hand else f"waits up to {limit:g} s, supervision.leave_seconds"
        self.progress.note(f"asked to end: the learner finishes its step{takes} and writes a checkpoint; {ends}")
        learner.leave(self.config.learner.collective_s if by_hand else limit)
        step = self._durable.now()
        self.progress.note(f"the newest checkpoint is of learner step {step}" if step else "there is no checkpoint yet")

    def _hurried(self, rows: Sequence[MetricsRow]) -> dict[str, str]:
        """Returns a warning if SIGTERM would not leave the learner the time to finish a step."""
        limit, seconds = self.config.supervision.leave_seconds, training_seconds(rows[-1]) if rows else 0.0
        if seconds <= limit or not limit:
            return {}
        return {"leave_seconds": (
            f"a learner step trains for {span(seconds)}, and SIGTERM leaves it {limit:g} s: the step in flight would "
            f"be trained again. Set supervision.leave_seconds={10 * math.ceil(seconds / 8):g}, and let the sender of "
            "the signal wait for longer than that. Ctrl-C waits for the step")}

    def unplayed(self) -> dict[str, list[float]]:
        """Returns the policies of the final table, each with the temperatures at which it has not played yet."""
        more = self.config.eval.compare_cold_start and self.config.sft.enabled
        games, samples = len(self.task_sets.heldout), self.config.eval.panel_samples
        done = {(e["label"], e["step"], e["temperature"]) for e in read_evaluations(self.folder.evaluations)
                if e["tasks"] + e["dropped"] == games and e["episodes"] == e["tasks"] * samples}
        left = {label: [t for t in self.config.eval.panel_temperatures if (label, self._steps_of(label), t) not in done]
                for label in (COLD, TRAINED, *([MORE] if more else [])) if games}
        return {label: temperatures for label, temperatures in left.items() if temperatures}

    def _steps_of(self, label: str) -> int:
        """Returns the learner step of a policy of the table. It may be above `steps`, which may be lowered later."""
        return 0 if label == COLD else max(self.config.steps, self._durable.now())

    def heldout(self, parts: Topology, controller: Controller, cold: Path, loading: Loading) -> None:
        """Plays the held-out games with the policies before RL, after RL, and after as many minutes of cold start.

        Nothing was tuned on these games.
        """
        for label, temperatures in self.unplayed().items():
            controller.telemetry.state("starting", f"prepares {title_of(label)}")
            model = self._policy(label, cold)
            loading.then(partial(self.progress.stage, title_of(label)))
            version = publish_folder(parts, model, holder=self.run, step=self._steps_of(label))
            controller.evaluate_now([
                EvalRequest(label=label, version=version, split=self.task_sets.heldout_split,
                            tasks=self.task_sets.heldout, temperature=t, samples=self.config.eval.panel_samples,
                            seed=self.config.seed + 1, env=self.config.env)
                for t in temperatures
            ])

    def _policy(self, label: str, cold: Path) -> Path:
        if label != MORE:
            return cold if label == COLD else self.folder.trained_model
        steps = read_rows(self.folder.metrics)  # their seconds include the waiting for episodes
        minutes = sum(value for row in steps for key, value in row.items() if key.startswith("seconds/")) / 60
        self.progress.stage(f"the same {minutes:.1f} minutes of more cold start, for comparison")
        return self._sft(self.folder.more_model, minutes=minutes, continue_from=cold)

    def report(self) -> list[str]:
        """Writes summary.json, report.html and figures. Returns the table, the verdict and the next commands."""
        self._wait_for_folder()
        evaluations = read_evaluations(self.folder.evaluations)
        comparison = compare(evaluations)
        lines = as_lines(comparison, env=self.task_sets.env_name) if comparison else []
        sets = self.task_sets
        heldout = {"split": sets.heldout_split, "games": len(sets.heldout), "digest": sets.heldout_digest}
        summary = {"format": 1, "table": lines, "engine": sets.engine, "heldout": heldout}
        write_whole(self.folder.summary, json.dumps(summary, indent=1) + "\n")
        page, _ = write_report([self.folder.path], self.folder.path)
        metrics = read_metrics(self.folder.metrics)
        return [*lines, f"report: {page.absolute()}",
                *(f"time: {as_line(times)}" for times in [step_times(metrics)] if times),
                *(f"warning: {one.text}" for one in self._warnings(metrics, evaluations)),
                *(f"verdict: {one.text}" for one in verdicts(evaluations)), "next:",
                *(f"  {command}" for command in next_commands(self.folder.path, evaluations))]
