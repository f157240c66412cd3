"""Evaluation: tickets for one exact version over a fixed task set, and their result with an interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from services.controller.tickets import EvalRequest, typed
from services.records import Drop, Episode
from services.statistics import success_interval
from services.store.lease import Lease
from services.store.store import Store
from services.telemetry.tickets import trace_issue


class Evaluation:
    """One request in flight: issue() once, then collect() until it gives the result.

    Issue is idempotent and group ids are fixed by the request, so a lost reply issues nothing twice.
    """

    def __init__(self, store: Store, lease: Lease, request: EvalRequest, task_type: Callable[[str], str]) -> None:
        self.request = request
        self._task_type = task_type
        self._store = store
        self._lease = lease
        self._pending = {request.group(i) for i in range(len(request.tasks))}
        self._episodes: list[Episode] = []
        self._dropped: list[str] = []

    def issue(self) -> None:
        """Puts all tickets into the stream; evaluation is outside the training capacity."""
        for group in self.request.tickets():
            tickets = typed(group, self._task_type)
            self._store.issue(self._lease, tickets, capacity=0)
            trace_issue(tickets)

    def group_dropped(self, group: str) -> None:
        """Where `group` was of this evaluation, its task is missing from the result, and counted."""
        if group in self._pending:
            self._pending.discard(group)
            self._dropped.append(group)

    def collect(self) -> list[Episode] | None:
        """All episodes once every group is ready or dropped, else None."""
        arrived = self._pending.intersection(self._store.ready("eval"))
        for group in sorted(arrived):
            self._episodes.extend(self._store.episodes(group))
        if arrived:
            self._store.retire_eval(self._lease, sorted(arrived))
            self._pending -= arrived
        return None if self._pending else self._episodes

    @property
    def remaining(self) -> int:
        """Groups not yet in."""
        return len(self._pending)

    @property
    def dropped(self) -> int:
        """Groups that a fault took away."""
        return len(self._dropped)


def clear(store: Store, lease: Lease) -> None:
    """Ends what an earlier life of the run left of its evaluations: the version that they name died with it."""
    for group in store.outstanding_groups():
        if group.startswith("eval/"):
            store.drop(lease, Drop(group=group, task="", reason="the run was started again"))
    store.retire_eval(lease, store.ready("eval"))


def success_by_task(episodes: list[Episode]) -> dict[str, float]:
    """Mean success of each task over its samples."""
    wins: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        wins[episode.ticket.task].append(float(episode.won))
    return {task: sum(values) / len(values) for task, values in wins.items()}


def summarise(request: EvalRequest, episodes: list[Episode], *, dropped: int,
              task_type: Callable[[str], str]) -> dict[str, Any]:
    """One line of evaluations.jsonl: mean success with its 95% interval over tasks, by type, lengths in steps.

    task_score: the mean of the environment's own score over episodes; null where it has none.
    """
    by_task = success_by_task(episodes)
    by_type: dict[str, list[float]] = defaultdict(list)
    for task, value in by_task.items():
        by_type[task_type(task)].append(value)
    mean, low, high = success_interval(list(by_task.values()), request.samples)
    steps = [step for episode in episodes for step in episode.steps]
    scores = [episode.task_score for episode in episodes if episode.task_score is not None]
    return {
        "label": request.label,
        "step": request.version.step,
        "version": request.version.short,
        "digest": request.version.digest,
        "split": request.split,
        "temperature": request.temperature,
        "tasks": len(by_task),
        "episodes": len(episodes),
        "dropped": dropped,
        "success_rate": mean,
        "success_low": low,
        "success_high": high,
        "task_score": sum(scores) / len(scores) if scores else None,
        "success_by_type": {name: sum(v) / len(v) for name, v in sorted(by_type.items())},
        "episode_length": len(steps) / len(episodes),
        "invalid_share": sum(not s.valid for s in steps) / max(1, len(steps)),
        "inadmissible_share": sum(not s.admissible for s in steps) / max(1, len(steps)),
        "success_by_task": by_task,
    }
