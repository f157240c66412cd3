"""Lets the learner's ranks make a cold start: starts them on Ray, restarts them if one dies, reports their progress.
New ranks continue from the newest state (learner/cold_start/states.py), also after the driver died.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from deploy.launch.ray_cluster import ray_cluster
from deploy.members import private_ray
from deploy.members.placement import bundle
from deploy.members.private_ray import RayLost
from deploy.members.ray_actor import LearnerRanks
from deploy.training.cold_start import Report
from learner.cold_start.sft import REPORT_SECONDS, Lesson, Order, SftProgress
from learner.cold_start.sft_data import PROGRESS, ROWS, save_rows
from learner.cold_start.states import folder_of, state_steps
from services.config.tree import Config
from services.controller.member import End
from services.controller.supervise import Supervisor
from services.errors import Fault, UserError
from services.outages import LastValue, retry_files

LOOK_S = 0.5
"""Seconds between two looks at the ranks."""
OnProgress = Callable[[SftProgress], object]


class ImitatingRanks(LearnerRanks):
    """The ranks of one cold start.

    After `attempts` failures in a row without a new state, poll() gives up. It raises Fault if the last failure was a
    kill, else UserError. `newest_state` returns the number of its updates.
    """

    def __init__(self, *arguments: Any, attempts: int, newest_state: Callable[[], int], **keys: Any) -> None:
        super().__init__(*arguments, **keys)
        self._attempts, self._failed = attempts, 0
        self._newest_state, self._reached = newest_state, 0

    def poll(self) -> End | None:
        end = super().poll()
        if end is None or not end.reason:
            return end
        if (updates := self._newest_state()) > self._reached:
            self._reached, self._failed = updates, 0
        self._failed += 1
        if self._failed >= self._attempts:
            message = (f"the cold start failed {self._failed} times after update {self._reached} "
                       f"(learner.step_attempts), last: {end.reason}")
            if end.killed:  # by a loss of nodes, say: another start may help
                raise Fault(f"{message}; to continue: the same command, or --resume for a run")
            raise UserError(message, "continue with a smaller learner.token_budget or learner.offload=true, or start "
                            "another cold start (name=..., or --out) with a lower sft.lr")
        return end


def imitate(config: Config, model: Path, out: Path, lesson: Lesson, *, report: Report,
            on_progress: OnProgress) -> dict[str, Any]:
    """Trains `model` on the ranks of the learner, which write the trained model into `out`.

    Returns `training` (SftProgress as a dict), `parameters` and `ranks`. `on_progress` takes the progress every
    REPORT_SECONDS of training.

    Uses the Ray that this process is connected to; without one it connects as a run does. Raises UserError, RayLost for
    a Ray of the caller's, and Fault if the ranks cannot start or find no place, or if the last of
    `learner.step_attempts` failures was a kill.
    """
    loaded = sys.modules.get("ray")  # imported before its variables are set, it would not find a private cluster
    connected = loaded is not None and loaded.is_initialized()
    with _shared_folder(config, lesson, out, report) as work:
        order = Order(model=model.absolute(), out=out.absolute(), work=work, budget=lesson.budget, seed=lesson.seed)
        while True:
            try:
                with nullcontext() if connected else ray_cluster(config, f"gagpo-{uuid.uuid4().hex[:12]}", report):
                    return _imitate(config, order, report=report, on_progress=on_progress)
            except RayLost as lost:
                if connected:
                    raise
                report(f"{lost}; the cold start continues in a new one")


@contextmanager
def _shared_folder(config: Config, lesson: Lesson, out: Path, report: Report) -> Iterator[Path]:
    """Provides a folder next to `out` for the rows, rank 0's progress and the states. It stays, unless the block raises
    before there is a state: the same cold start continues from a state, and the caller removes it at its end."""
    work = folder_of(out)

    def hand_over() -> None:
        work.mkdir(parents=True, exist_ok=True)
        save_rows(lesson.rows, work / ROWS)

    try:
        retry_files(hand_over, seconds=config.learner.collective_s, what=f"{work} could not be written",
                    note=report)
        yield work
    except BaseException:
        if not state_steps(work):
            shutil.rmtree(work, ignore_errors=True)
        raise


def _imitate(config: Config, order: Order, *, report: Report, on_progress: OnProgress) -> dict[str, Any]:
    from learner.actor import ImitatingActor

    learner, file = config.learner, order.work / PROGRESS
    retry_files(lambda: file.unlink(missing_ok=True), seconds=learner.collective_s,
                what=f"{file} could not be removed", note=report)  # left by an attempt whose Ray or driver died
    progress = LastValue(partial(_read, file), seconds=learner.collective_s)
    rank_group = ImitatingRanks(
        learner.ranks,
        lambda rank, world, options: ImitatingActor.options(**options).remote(
            config_json=config.model_dump_json(), rank=rank, world=world, order=order),
        # Undivided GPUs, since no worker shares them yet: Ray would put two halves on one.
        bundle(cpus=learner.cpus, gpus=math.ceil(learner.gpus), nodes=config.placement.learner),
        fewest=learner.fewest_ranks, attempts=learner.step_attempts,
        newest_state=lambda: progress.now().get("kept", 0))
    with _watched(config, rank_group, progress, report) as supervisor:
        reporter = _Reporter(report, on_progress)
        while not supervisor.finished(rank_group):
            supervisor.check()
            reporter.pass_on(progress.now())
            time.sleep(LOOK_S)
    return retry_files(partial(_read, file), seconds=learner.collective_s, what=f"{file} could not be read",
                       note=report)


class _Reporter:
    """Reports what rank 0 writes: its messages (the state from which it continues, a full disk), and its progress every
    REPORT_SECONDS."""

    def __init__(self, report: Report, on_progress: OnProgress) -> None:
        self._report, self._on_progress = report, on_progress
        self._notice: Any = None
        self._reported_at = 0.0

    def pass_on(self, facts: Mapping[str, Any]) -> None:
        notice, training = facts.get("begun"), facts.get("training")
        if notice and notice != self._notice:
            self._notice = notice
            for line in notice[1]:
                self._report(line)
        if training and not 0 <= training["seconds"] - self._reported_at < REPORT_SECONDS:  # new ranks begin earlier
            self._reported_at = training["seconds"]
            self._on_progress(SftProgress(**training))


@contextmanager
def _watched(config: Config, rank_group: LearnerRanks, progress: LastValue[dict[str, Any]],
             report: Report) -> Iterator[Supervisor]:
    """Starts the ranks under a supervisor, and stops them when the block ends.

    Heartbeats go through the folder, so ranks may be silent for as long as a folder may be unavailable.
    """
    patient = config.supervision.model_copy(update={
        "silence_seconds": max(config.supervision.silence_seconds, config.learner.collective_s)})
    supervisor = Supervisor(report, patient, beats=lambda: progress.now().get("beats", {}), ground=private_ray.check)
    try:
        supervisor.add(rank_group)
        yield supervisor
    finally:
        supervisor.stop()


def _read(progress: Path) -> dict[str, Any]:
    """Returns what rank 0 has written, {} before it has written anything."""
    try:
        return json.loads(progress.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
