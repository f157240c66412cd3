"""Decides which groups the next learner step trains on.

A step takes the oldest finished groups. It waits for unfinished groups that only it can use, and it drops groups that
are too old or, under dynamic sampling, teach nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from learner.credit.types import ZERO
from services.config.tree import Config
from services.errors import DeadlineExceeded
from services.records import Episode
from services.store.archive import EpisodeArchive
from services.store.lease import Lease
from services.store.store import Store, Supply, is_complete
from services.telemetry.heartbeat import NO_SERVERS, Heartbeat, all_do
from services.telemetry.logs import get_logger
from services.telemetry.names import reason_class

POLL_S = 0.1
SILENT_S = 60.0
"""Seconds without a heartbeat of any rollout worker after which that is told. A worker that loads sends none."""
LOOK_S = 2.0
WAITS, NO_WORKERS = "waits for groups", "waits for groups; no rollout worker has been heard"
"""The learner's activity, as `gagpo status` shows it."""
UNIFORM = "uniform reward"
"""First words of the reason of a drop by dynamic sampling."""
log = get_logger("learner")


class _Workers:
    """The heartbeats of the rollout workers, while the learner waits for groups."""

    def __init__(self, store: Store, heartbeat: Heartbeat) -> None:
        self._store, self._heartbeat = store, heartbeat
        self._looked_at = self._heard_at = self.idle_at = time.monotonic()
        self._told = False
        self.no_servers = False
        """Whether all workers waited for environment servers at the last look."""

    def look(self) -> None:
        """Reads the heartbeats, if the last look is LOOK_S ago. The first silence is logged.

        `idle_at` becomes the time of each look that finds no worker which could play.
        """
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at, beats = now, self._store.state.beats()
            self.no_servers = all_do(beats, "rollout", NO_SERVERS)
            heard = any(beat.get("role") == "rollout" for beat in beats.values())
            self._heard_at = now if heard else self._heard_at
            self.idle_at = self.idle_at if heard and not self.no_servers else now
        if self.silent_s and not self._told:
            log.warning(f"no rollout worker has been heard for {self.silent_s:.0f} s; waiting for one "
                        "(a worker that loads its model sends no heartbeat)")
        self._told = bool(self.silent_s)
        self._heartbeat.doing(NO_WORKERS if self._told else WAITS)

    @property
    def silent_s(self) -> float:
        """Seconds for which no worker has been heard, up to the last look; 0 up to SILENT_S."""
        silent_s = self._looked_at - self._heard_at
        return silent_s if silent_s > SILENT_S else 0.0


@dataclass(slots=True, kw_only=True)
class GroupCollector:
    """Collects the groups of each learner step. `check` raises if this process has lost its role."""

    config: Config
    store: Store
    lease: Lease
    archive: EpisodeArchive
    check: Callable[[], None] = lambda: None
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat("learner-0", "learner"))

    def collect(self, step: int) -> list[str]:
        """Returns the groups that learner step `step` trains on, oldest first. Raises DeadlineExceeded."""
        learner, seen, since, workers = self.config.learner, None, time.monotonic(), _Workers(self.store,
                                                                                              self.heartbeat)
        while True:
            self.check()
            supply = self.store.supply()
            if supply != seen:
                seen, since = supply, time.monotonic()
            ready, overdue = supply.ready[:learner.groups_per_step], self._only_now(supply)
            if len(ready) == learner.groups_per_step and not overdue:
                ready = self._not_uniform(self._young_enough(ready, step))
                if len(ready) == learner.groups_per_step:
                    return ready
            workers.look()
            if workers.no_servers:
                since = workers.idle_at  # env.outage_seconds limits how long this may last
            now = time.monotonic()
            if ready and now - max(since, workers.idle_at) > learner.overdue_s:
                # Other groups are finished, and workers could play all this time, so only these groups hang.
                reason = f"over-age: unfinished {learner.overdue_s:g} s after the last group was finished"
                self.drop(dict.fromkeys(overdue, reason))
            if now - since > learner.wait_s:
                silent_s = workers.silent_s
                silence = f"; no rollout worker has been heard for {silent_s:.0f} s" if silent_s else ""
                raise DeadlineExceeded(f"learner step {step}: {len(ready)} of {learner.groups_per_step} groups are "
                                       f"finished, and none more was in {learner.wait_s:g} s (learner.wait_s){silence}")
            time.sleep(POLL_S)

    def _only_now(self, supply: Supply) -> list[str]:
        """Returns unfinished groups issued for this step or an earlier one: at the next step they may be too old."""
        end = supply.trained + supply.dropped + self.config.learner.groups_per_step
        return [group for group in supply.unfinished if int(group.removeprefix("train/")) < end]

    def _young_enough(self, groups: list[str], step: int) -> list[str]:
        """Drops the groups with a token that an older policy sampled than `learner.staleness` allows.

        A version's step decides, not its incarnation: a replay reproduces the weights of each step, on GPUs nearly.
        """
        oldest = step - 1 - self.config.learner.staleness
        young = {group: min(episode.oldest_step for episode in episodes) >= oldest
                 for group, episodes in self._read(groups)}
        self.drop({group: f"over-age: sampled before step {oldest}" for group in young if not young[group]})
        return [group for group in young if young[group]]

    def _not_uniform(self, groups: list[str]) -> list[str]:
        """Drops groups whose episodes all earn the same: they have no gradient under group statistics.

        This is dynamic sampling (DAPO, arXiv 2503.14476, section 3.2; as in verl-agent, whose rounds sample
        groups_per_step groups each). The oldest groups are dropped first, until the step's rounds are used up. After
        that the step takes groups without filtering. The count is read from the store, so an interruption does not
        change which groups a step takes.
        """
        learner = self.config.learner
        left = learner.dynamic_sampling * learner.groups_per_step
        if not left:
            return groups
        left -= sum(drop.reason.startswith(UNIFORM) for drop in self.store.drops())
        kept: list[str] = []
        uniform: dict[str, str] = {}
        for group, episodes in self._read(groups):
            rewards = [episode.total_reward for episode in episodes]
            # The same rewards in another order have another sum, by rounding.
            if max(rewards) - min(rewards) > ZERO or len(uniform) >= left:
                kept.append(group)
            else:
                uniform[group] = f"{UNIFORM} {rewards[0]:g}"
        self.drop(uniform, tell=log.info)
        return kept

    def _read(self, groups: list[str]) -> Iterator[tuple[str, list[Episode]]]:
        """Yields each group with its episodes. A group of which a body is lost, also since an earlier read, is left
        out: the store gives its tickets back to the workers, as long as no manifest names it."""
        for group in groups:
            episodes = self.store.episodes(group)
            if is_complete(episodes):
                yield group, episodes

    def drop(self, reasons: Mapping[str, str], *, tell: Callable[..., object] = log.warning) -> None:
        """Drops groups, `reasons`: group -> why. Writes their finished episodes to the archive before the store forgets
        them. The store forgets all at once: a learner that dies before that drops the same ones again.
        """
        if not reasons:
            return
        dropped = self.store.to_drop(reasons)
        for drop in dropped:
            self.heartbeat.meters("gagpo_groups_dropped_total", reason=reason_class(drop.reason)).inc()
            tell("group dropped", group=drop.group, task=drop.task, reason=drop.reason)
        self.archive.write_dropped(dropped)
        self.store.drop(self.lease, *dropped)
