"""Runs an evaluation: issues tickets for one exact version on a fixed task set, and summarises the episodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from services.controller.tickets import EvalRequest, typed
from services.records import Drop, Episode
from services.statistics import best_of, bootstrap_interval, success_interval
from services.store.lease import Lease
from services.store.store import Store, is_complete
from services.telemetry.catalogue import reason_class
from services.telemetry.logs import get_logger

log = get_logger("controller")


class Evaluation:
    """One evaluation that is running. Call issue() once, then collect() until it returns the episodes.

    Issuing is idempotent and the request fixes the group ids, so nothing is issued twice if a reply gets lost.
    """

    def __init__(self, store: Store, lease: Lease, request: EvalRequest, task_type: Callable[[str], str]) -> None:
        self.request = request
        self._task_type = task_type
        self._store = store
        self._lease = lease
        self._pending = {request.group(i) for i in range(len(request.tasks))}
        self._episodes: list[Episode] = []
        self._dropped: list[str] = []
        self.weights_gone = False
        """Whether a group was dropped because no process has the weights of this evaluation's version any more."""

    def issue(self) -> None:
        """Issues all tickets at once. Evaluation does not count against the training capacity."""
        self._issue(self._pending)

    def issue_lost(self) -> None:
        """Issues the groups again that the store has lost: Redis may lose the last second before its machine died."""
        unfinished = self._store.outstanding_groups()  # first: a group that finishes meanwhile is then among the ready
        if lost := self._pending.difference(unfinished, self._store.ready("eval")):
            log.warning("Redis has lost groups of an evaluation; they are issued again",
                        label=self.request.label, groups=len(lost))
            self._issue(lost)

    def _issue(self, groups: Collection[str]) -> None:
        for group in self.request.tickets():
            if group[0].group not in groups:
                continue
            self._store.issue(self._lease, typed(group, self._task_type), capacity=0)

    def group_dropped(self, drop: Drop) -> None:
        """Counts a group as dropped if it belongs to this evaluation. Its task will be missing from the result."""
        if drop.group in self._pending:
            self._pending.discard(drop.group)
            self._dropped.append(drop.group)
            self.weights_gone |= reason_class(drop.reason) == "weights_gone"

    def give_up(self) -> None:
        """Drops what is unfinished of all evaluations in the store, and deletes the rest. The same tasks may be issued
        again, for another version."""
        clear(self._store, self._lease, f"the weights of version {self.request.version.short} are gone")

    def collect(self) -> list[Episode] | None:
        """Returns all episodes once every group is ready or dropped, else None."""
        arrived = self._pending.intersection(self._store.ready("eval"))
        for group in sorted(arrived):
            episodes = self._store.episodes(group)
            if is_complete(episodes):
                self._episodes.extend(episodes)
            else:  # one is lost, and is played again
                arrived.discard(group)
        if arrived:
            self._store.retire_eval(self._lease, sorted(arrived))
            self._pending -= arrived
        if self._pending:
            return None
        self._store.sweep()
        return self._episodes

    @property
    def remaining(self) -> int:
        """Number of groups that are neither finished nor dropped."""
        return len(self._pending)

    @property
    def dropped(self) -> int:
        """Number of groups that were dropped because of a fault."""
        return len(self._dropped)


def clear(store: Store, lease: Lease, reason: str = "the run was started again") -> None:
    """Drops the unfinished groups of evaluations and deletes the finished ones. Their weights no longer exist."""
    for group in store.outstanding_groups():
        if group.startswith("eval/"):
            store.drop(lease, Drop(group=group, task="", reason=reason))
    store.retire_eval(lease, store.ready("eval"))


def success_by_task(episodes: list[Episode]) -> dict[str, float]:
    """Returns the mean success of each task over its samples."""
    wins: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        wins[episode.ticket.task].append(float(episode.won))
    return {task: sum(values) / len(values) for task, values in wins.items()}


def best_of_repeats(episodes: Sequence[Episode], samples: int) -> dict[str, dict[str, float]]:
    """Returns the expected best of k of each game's `samples` episodes, by k: 2, 4, ... and `samples` itself.

    pass_at: share of games won at least once; best_score: the environment's own score, if all episodes have one. Each
    is a mean over games, with the ends of its 95% interval next to it (_low, _high). {} without repeats. A
    measure is left out if a game lacks an episode or its score.
    """
    wins, scores = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for episode in episodes:
        wins[episode.ticket.task].append(float(episode.won))
        if episode.task_score is not None:
            scores[episode.ticket.task].append(episode.task_score)
    measures = {"pass_at": (wins, (0.0, 1.0))}
    if seen := [score for values in scores.values() for score in values]:
        measures["best_score"] = (scores, (min(seen), max(seen)))
    columns: dict[str, dict[str, float]] = {}
    for name, (by_task, bounds) in measures.items():
        if samples < 2 or len(by_task) < len(wins) or any(len(values) != samples for values in by_task.values()):
            continue
        columns |= {name: {}, f"{name}_low": {}, f"{name}_high": {}}
        for k in sorted({samples, *(1 << power for power in range(1, samples.bit_length()))}):
            ends = bootstrap_interval([best_of(by_task[task], k) for task in sorted(by_task)], bounds=bounds)
            for column, value in zip((name, f"{name}_low", f"{name}_high"), ends, strict=True):
                columns[column][str(k)] = value
    return columns


def by_rule(episodes: Sequence[tuple[float | None, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns the mean score by each rule of the environment, and the share of full scores, 1 or more. Nothing for
    an environment with one rule. `episodes`: the environment's own score of each, and its scores by rule.

    An episode that was cut off before its end was scored has the environment's own score at that point by every rule.
    """
    rules = sorted({rule for _, scores in episodes for rule in scores})
    scores = {rule: [scores.get(rule, own or 0.0) for own, scores in episodes] for rule in rules}
    return {} if not rules else {
        "score_by_rule": {rule: fmean(values) for rule, values in scores.items()},
        "full_score_by_rule": {rule: fmean(value >= 1 for value in values) for rule, values in scores.items()}}


def _by_env(request: EvalRequest, by_task: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns the mean success in each environment of a run with several, with the ends of its 95% interval next to it.
    """
    by_env = defaultdict[str, list[float]](list)
    for task, value in by_task.items() if request.env.more else ():
        by_env[task.partition("/")[0]].append(value)
    columns: dict[str, dict[str, float]] = {}
    for name, values in sorted(by_env.items()):
        for end, value in zip(("", "_low", "_high"), success_interval(values, request.samples), strict=True):
            columns.setdefault(f"success_by_env{end}", {})[name] = value
    return columns


def summarise(request: EvalRequest, episodes: list[Episode], *, dropped: int,
              task_type: Callable[[str], str]) -> dict[str, Any]:
    """Returns one row of evaluations.jsonl: mean success with its 95% interval over tasks, by task type and, in a run
    of several environments, by environment; lengths, shares of bad answers, the number of sampled tokens, the best of
    repeated episodes and scores by rule.

    Lengths are in turns. task_score: mean of the environment's own score over episodes, null if it has no score.
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
        **_by_env(request, by_task),
        "episode_length": len(steps) / len(episodes),
        "invalid_share": sum(not s.valid for s in steps) / max(1, len(steps)),
        "inadmissible_share": sum(not s.admissible for s in steps) / max(1, len(steps)),
        "cut_share": sum(s.cut for s in steps) / max(1, len(steps)),
        "tokens_sampled": sum(len(step.response_ids) for step in steps),
        "success_by_task": by_task,
        **best_of_repeats(episodes, request.samples),
        **by_rule([(episode.task_score, episode.rule_scores) for episode in episodes]),
    }
