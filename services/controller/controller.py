"""The controller issues tickets up to capacity, evaluates, drops failed groups, and stops a run that makes no progress.

    loop (one tick, about 5 a second)   waits for                                     learns of it from
    supervise                           the death of a member                         polling the members
    drop                                a ticket without attempts left                the store's list of failed groups
    evaluate                            a version that is due, then its episodes      the version pointer, ready groups
                                        and its weights on disk
    issue                               issued - dropped < (trained steps + 1 + staleness) x groups_per_step, and
                                        groups to replace others from staleness 1 on (tickets.py); with a sampler,
                                        the results that the group's task depends on
    watch                               any progress: a store count, a turn           the clock

All loops run in one thread. Every call has a deadline, in the store or in the member. All state that must survive this
process is in the store.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.config.tree import Config
from services.controller.evaluation import Evaluation, summarise
from services.controller.member import Member
from services.controller.supervise import Supervisor
from services.controller.telemetry import Telemetry
from services.controller.tickets import Demand, EvalRequest, TrainTickets, demand_of, typed
from services.errors import Fault
from services.records import Drop, Episode, Version
from services.store.lease import Lease
from services.store.store import Counts, Store
from services.telemetry.evaluations import on_curve, title_of
from services.telemetry.heartbeat import NO_SERVERS

TICK_S = 0.2
LOOK_EVERY_S = 5.0
"""Seconds between two checks that the store still has what the controller has written about evaluations."""
MAX_FAILED_SHARE = 0.01
MIN_FAILED_TO_STOP = 3
"""A run is stopped only from this number of failed groups on: a single one does not make a short run broken."""
QUARANTINE_AFTER = 2
SPARE = "over-age: no learner step is left for it"
"""Reason of the drop of a group that was issued to replace another, and that no step needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The callbacks of the controller: events that it reports, and questions that it asks."""

    note: Callable[[str], None]
    evaluated: Callable[[dict[str, Any], list[Episode]], None]
    """Takes a row of evaluations.jsonl and its episodes."""
    task_type: Callable[[str], str]
    tick: Callable[[], None]
    """Called once per tick. Progress views read the run's folder in it."""
    dropped: Callable[[Mapping[Drop, list[Episode]]], object] = lambda _: None
    """Takes groups that are about to be dropped, and their finished episodes, before the store forgets them."""
    playing: Callable[[str, int, int], object] = lambda *_: None
    """Takes an evaluation's label, its number of finished groups and of all groups, whenever these change."""
    waits: Callable[[str], object] = lambda _: None
    """Takes a line about the outside service that the entire run waits for; "" once the run continues."""


@dataclass(kw_only=True)
class Controller:
    """Runs the loops of the module's table. `request` returns the evaluation that is due for a version, or None."""

    config: Config
    store: Store
    lease: Lease
    supervisor: Supervisor
    tickets: TrainTickets
    request: Callable[[Version], EvalRequest | None]
    hooks: Hooks
    weights_kept: Callable[[Version], bool] = lambda _: True
    """Whether the weights of a version are on disk, so that a score of theirs may be recorded."""
    clock: Callable[[], float] = time.monotonic
    telemetry: Telemetry = field(default_factory=Telemetry)
    _evaluation: Evaluation | None = None
    _task_failures: Counter[str] = field(default_factory=Counter)
    _demand: tuple[tuple[int, int], Demand] | None = None
    _eval_done: int = -1
    _signature: object = None
    _moved_at: float = 0.0
    _no_servers: bool = False
    _looked_at: float = 0.0

    def resume(self, evaluations: Sequence[Mapping[str, Any]]) -> None:
        """Takes over the evaluations that the run made before it was resumed, rows of evaluations.jsonl.

        The folder decides, not Redis. So no version is evaluated twice, and boards show the last result at once.
        """
        curve = [row for row in evaluations if on_curve(row["label"])]
        self.store.state.mark_evaluated(self.lease, max((row["step"] for row in curve), default=-1))
        for row in curve[-1:]:
            self.telemetry.evaluated(row)

    def run(self, learner: Member) -> None:
        """Runs until the learner and the last evaluation have finished. Raises Fault if the run is stuck or broken."""
        self._moved_at = self.clock()
        self._eval_done = self.store.state.evaluated()
        while not (self.supervisor.finished(learner) and self._evaluation is None and not self._evaluate_due()):
            self.tick()
            time.sleep(TICK_S)

    def tick(self) -> None:
        """Runs each loop once."""
        self._round(self.evaluate, self.issue)

    def _round(self, *work: Callable[[], object]) -> None:
        """Runs the loops that a run and a lone evaluation share. The watch sees what `work` changed."""
        self.store.leases.renew(self.lease)
        self.supervisor.check()
        self.drop_failed()
        self.restore_lost()
        for each in work:
            each()
        self.watch()
        self.hooks.tick()

    def restore_lost(self) -> None:
        """Writes evaluated steps and evaluations again if Redis has lost its last second. No other process would."""
        if self.clock() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = self.clock()
        if self._evaluation is not None:
            self._evaluation.issue_lost()
        if self.store.state.evaluated() < self._eval_done:
            self.store.state.mark_evaluated(self.lease, self._eval_done)

    def issue(self) -> None:
        """Issues complete groups in order while there is capacity, and never more groups than the run will train."""
        counts = self.store.counts()
        demand = self._demand_of(counts)
        limit = demand.limit
        avoid = frozenset(t for t, n in self._task_failures.items() if n >= QUARANTINE_AFTER)
        index, dropped = counts.next_group, counts.dropped
        corrects = self.config.learner.judge.correction and index - dropped < limit
        correction = self.store.state.correction() if corrects else ""
        while index - dropped < limit:
            consumed_at = demand.consumed_at(index - dropped)
            if self._waits_for_results(consumed_at):
                return
            group = self.tickets.group(index, consumed_at=consumed_at, avoid=avoid, correction=correction)
            group = typed(group, self.hooks.task_type)
            if not self.store.issue(self.lease, group, capacity=limit):
                return
            index += 1
        if limit == counts.trained < counts.issued - counts.dropped:
            self._drop_spare()

    def _waits_for_results(self, consumed_at: int) -> bool:
        """Whether the task of a group depends on the results of a step that the learner repeats at this moment."""
        if self.tickets.sampler is None:
            return False
        pointer = self.store.state.version()
        return self.tickets.sampler.waits(consumed_at, -1 if pointer is None else pointer[0].step)

    def _drop_spare(self) -> None:
        """Drops the groups that were issued to replace others and that no step is left for."""
        supply = self.store.supply()
        drops = self.store.to_drop(dict.fromkeys((*supply.ready, *supply.unfinished), SPARE))
        self.hooks.dropped(drops)
        self.store.drop(self.lease, *drops)

    def _demand_of(self, counts: Counts) -> Demand:
        """Returns the present demand. The store is read again after a step has begun or a group was dropped."""
        now = (counts.trained, counts.dropped)
        if self._demand is None or self._demand[0] != now:
            self._demand = now, demand_of(self.store, self.config, counts)
        return self._demand[1]

    def drop_failed(self) -> None:
        """Drops groups with a ticket that has no attempts left. A task that fails twice is quarantined."""
        for failed in self.store.failed_groups():
            self.hooks.dropped({failed: self.store.episodes(failed.group)})
            self.store.drop(self.lease, failed)
            self.telemetry.dropped(failed.reason)
            self.hooks.note(f"dropped {failed.group} ({failed.task}): {failed.reason}")
            if failed.group.startswith("eval/"):
                if self._evaluation is not None:
                    self._evaluation.group_dropped(failed)
                continue
            self._task_failures[failed.task] += 1
            self._refuse_too_many_failures(failed)

    def _refuse_too_many_failures(self, last: Drop) -> None:
        """Raises Fault if too many groups have failed since this process started.

        Groups that the learner drops, because they are too old or without spread, are no failures.
        """
        failed, issued = self._task_failures.total(), self.store.counts().issued
        if failed >= MIN_FAILED_TO_STOP and failed > MAX_FAILED_SHARE * issued:
            raise Fault(f"{failed} of {issued} groups failed, more than "
                        f"{MAX_FAILED_SHARE:.0%}; the last reason: {last.reason}")

    def _evaluate_due(self) -> EvalRequest | None:
        pointer = self.store.state.version()
        if pointer is None:
            return None
        self._follow_back(pointer[0].step)
        return self.request(pointer[0]) if pointer[0].step > self._eval_done else None

    def _follow_back(self, step: int) -> None:
        """Forgets the evaluations after `step` if the learner has gone back to it, to take the later steps again.

        A checkpoint was damaged, or Redis lost the groups of these steps. The new weights differ.
        """
        if step >= self._eval_done or self.store.counts().last_step >= self._eval_done:
            return
        self.hooks.note(f"the learner went back to step {step}: evaluations of later steps are made again")
        self._eval_done = step
        self.store.state.mark_evaluated(self.lease, step)

    def evaluate(self) -> None:
        """Evaluates the version that is due. The learner publishes no other version until it is marked as evaluated.

        The learner writes the weights meanwhile. The evaluation ends once they are on disk.

        If that learner dies and no process has its weights, the evaluation is repeated with the next learner's version.
        """
        if self._evaluation is not None and (why := self._lost_weights(self._evaluation)):
            self._evaluation.give_up()
            self.hooks.note(f"{title_of(self._evaluation.request.label)} begins anew: {why}")
            self._evaluation = None
        if self._evaluation is None:
            request = self._evaluate_due()
            if request is None:
                return
            self._evaluation = Evaluation(self.store, self.lease, request, self.hooks.task_type)
            self._evaluation.issue()
        episodes = self._evaluation.collect()
        if episodes is None or not self.weights_kept(self._evaluation.request.version):
            return
        self.finish_evaluation(self._evaluation, episodes)
        self._eval_done = self._evaluation.request.version.step
        self.store.state.mark_evaluated(self.lease, self._eval_done)
        self._evaluation = None

    def _lost_weights(self, evaluation: Evaluation) -> str:
        """Returns the reason why the run no longer has the evaluation's weights; "" if it has them."""
        version = evaluation.request.version
        if self.store.counts().last_step < version.step:
            return f"the learner went back to a step before {version.step}, and takes it again"
        pointer = self.store.state.version() if evaluation.weights_gone else None
        gone = pointer is not None and pointer[0] != version
        return f"nobody has the weights of version {version.short} any more" if gone else ""

    def finish_evaluation(self, evaluation: Evaluation, episodes: list[Episode]) -> dict[str, Any]:
        """Reports the summary and returns it. Raises Fault if not a single episode was finished."""
        if not episodes:
            raise Fault(f"{title_of(evaluation.request.label)}: every one of its groups was dropped")
        summary = summarise(evaluation.request, episodes, dropped=evaluation.dropped, task_type=self.hooks.task_type)
        self.hooks.evaluated(summary, episodes)
        self.telemetry.evaluated(summary)
        return summary

    def watch(self) -> None:
        """Raises Fault if nothing has changed for supervision.stall_seconds. The message names the stuck part."""
        counts = self.store.counts()
        remaining = self._evaluation.remaining if self._evaluation else 0
        pointer = self.store.state.version()
        signature = (counts, remaining, pointer, self.supervisor.progress)
        if self._lacks_servers():
            self._moved_at = self.clock()  # env.outage_seconds limits how long this may last
            if self.supervisor.waits:
                self.telemetry.moved(pointer[0].short if pointer else "")  # no reason for an alert: they start again
            return
        if signature != self._signature or self.supervisor.waits:
            self._signature, self._moved_at = signature, self.clock()
            self._report_progress(pointer[0].short if pointer else "")
            return
        longest = self.config.supervision.stall_seconds
        if self.clock() - self._moved_at < longest:
            return
        if counts.ready_groups >= self.config.learner.groups_per_step:
            stuck = "the learner: enough groups are ready, but it takes none"
        elif counts.outstanding_tickets:
            stuck = f"the rollout workers: {counts.outstanding_tickets} tickets are outstanding, but none is finished"
        else:
            stuck = "the learner: it neither trains nor publishes"
        raise Fault(f"no progress for {longest:.0f} s (supervision.stall_seconds) in {stuck}")

    def _lacks_servers(self) -> bool:
        """Whether all rollout workers wait for environment servers. Reports when that begins and when it ends."""
        before, self._no_servers = self._no_servers, self.supervisor.lacks_servers
        if self._no_servers != before:
            self.hooks.waits("waiting for environment servers" if self._no_servers else "")
            self.telemetry.state("evaluating" if self._evaluation else "training", NO_SERVERS)
            self._signature = None
        return self._no_servers

    def _report_progress(self, version: str) -> None:
        self.telemetry.moved(version)
        if self._evaluation is None:
            self.telemetry.state("training", "waits for the learner to take groups")
        else:
            left, label = self._evaluation.remaining, self._evaluation.request.label
            total = len(self._evaluation.request.tasks)
            self.hooks.playing(label, total - left, total)
            self.telemetry.state("evaluating", f"{title_of(label)}: waits for {left} groups")

    def evaluate_now(self, requests: list[EvalRequest]) -> list[dict[str, Any]]:
        """Runs `requests` one after the other, outside training. Returns their summaries in order."""
        summaries: list[dict[str, Any]] = []
        self._moved_at = self.clock()
        for request in requests:
            self._evaluation = Evaluation(self.store, self.lease, request, self.hooks.task_type)
            self._evaluation.issue()
            while (episodes := self._evaluation.collect()) is None:
                self._round()
                time.sleep(TICK_S)
            summaries.append(self.finish_evaluation(self._evaluation, episodes))
            self._evaluation = None
        return summaries
