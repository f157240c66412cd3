"""Decides which groups the next learner step trains on.

A step takes the oldest finished groups. It waits for unfinished groups that would be too old for the next step. It
drops groups that are too old and, under dynamic sampling, groups without a gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from learner.credit.types import ZERO
from services.config.tree import LearnerSection
from services.errors import DeadlineExceeded
from services.records import Episode
from services.store.archive import EpisodeArchive
from services.store.lease import Lease
from services.store.store import Store, Supply, is_complete
from services.telemetry.catalogue import reason_class
from services.telemetry.heartbeat import NO_SERVERS, Heartbeat, all_do
from services.telemetry.logs import get_logger

POLL_S = 0.1
SILENT_S = 60.0
"""Log the silence once no rollout worker has sent a heartbeat for so many seconds. A worker that loads sends none."""
LOOK_S = 2.0
WAITS, NO_WORKERS = "waits for groups", "waits for groups; no rollout worker has been heard"
"""Activities of the learner, as `gagpo status` shows them."""
UNIFORM = "uniform reward"
"""Start of the reason for a drop by dynamic sampling."""
log = get_logger("learner")


class _Workers:
    """The heartbeats of the rollout workers, while the learner waits for groups."""

    def __init__(self, store: Store, heartbeat: Heartbeat) -> None:
        self._store, self._heartbeat = store, heartbeat
        self._looked_at = self._heard_at = self.idle_at = time.monotonic()
        self._logged = False
        self.no_servers = False
        """Whether all workers were waiting for environment servers when `look` last read the heartbeats."""

    def look(self) -> None:
        """Reads the heartbeats at most every LOOK_S, and logs when a silence begins.

        `idle_at` is the last time at which no worker could play.
        """
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at, beats = now, self._store.state.beats()
            self.no_servers = all_do(beats, "rollout", NO_SERVERS)
            heard = any(beat.get("role") == "rollout" for beat in beats.values())
            self._heard_at = now if heard else self._heard_at
            self.idle_at = self.idle_at if heard and not self.no_servers else now
        if self.silent_s and not self._logged:
            log.warning(f"no rollout worker has been heard for {self.silent_s:.0f} s; waiting for one "
                        "(a worker that loads its model sends no heartbeat)")
        self._logged = bool(self.silent_s)
        self._heartbeat.doing(NO_WORKERS if self._logged else WAITS)

    @property
    def silent_s(self) -> float:
        """Seconds without a heartbeat when `look` last read them; 0 up to SILENT_S."""
        silent_s = self._looked_at - self._heard_at
        return silent_s if silent_s > SILENT_S else 0.0


@dataclass(slots=True, kw_only=True)
class GroupCollector:
    """Collects the groups of each learner step. `check` raises if this process has lost its role."""

    section: LearnerSection
    store: Store
    lease: Lease
    archive: EpisodeArchive
    check: Callable[[], None] = lambda: None
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat("learner-0", "learner"))

    def collect(self, step: int) -> list[str]:
        """Returns the groups that learner step `step` trains on, oldest first. Raises DeadlineExceeded."""
        section, workers = self.section, _Workers(self.store, self.heartbeat)
        previous, since = None, time.monotonic()
        while True:
            self.check()
            supply = self.store.supply()
            if supply != previous:
                previous, since = supply, time.monotonic()
            ready, overdue = supply.ready[:section.groups_per_step], self._last_chance(supply)
            if len(ready) == section.groups_per_step and not overdue:
                ready = self._not_uniform(self._young_enough(ready, step))
                if len(ready) == section.groups_per_step:
                    return ready
            workers.look()
            if workers.no_servers:
                since = workers.idle_at  # env.outage_seconds limits how long this may last
            now = time.monotonic()
            if ready and now - max(since, workers.idle_at) > section.overdue_s:
                # Other groups are finished, and workers could play all that time, so only these groups hang.
                reason = f"over-age: unfinished {section.overdue_s:g} s after the last group was finished"
                self.drop(dict.fromkeys(overdue, reason))
            if now - since > section.wait_s:
                silent_s = workers.silent_s
                silence = f"; no rollout worker has been heard for {silent_s:.0f} s" if silent_s else ""
                raise DeadlineExceeded(f"learner step {step}: {len(ready)} of {section.groups_per_step} groups are "
                                       f"finished, and none more was in {section.wait_s:g} s (learner.wait_s){silence}")
            time.sleep(POLL_S)

    def _last_chance(self, supply: Supply) -> list[str]:
        """Returns unfinished groups issued for this step or an earlier one, which may be too old at the next step."""
        end = supply.trained + supply.dropped + self.section.groups_per_step
        return [group for group in supply.unfinished if int(group.removeprefix("train/")) < end]

    def _young_enough(self, groups: list[str], step: int) -> list[str]:
        """Drops the groups with a token of an older policy than `learner.staleness` allows.

        The version's step counts, not its incarnation: a replay reproduces the weights of each step (nearly, on GPUs).
        """
        oldest = step - 1 - self.section.staleness
        young = {group: min(episode.oldest_step for episode in episodes) >= oldest
                 for group, episodes in self._read(groups)}
        self.drop({group: f"over-age: sampled before step {oldest}" for group in young if not young[group]})
        return [group for group in young if young[group]]

    def _not_uniform(self, groups: list[str]) -> list[str]:
        """Drops groups whose episodes all earn the same: they have no gradient under group statistics.

        This is dynamic sampling (DAPO, arXiv 2503.14476, section 3.2; as in verl-agent, whose rounds sample
        groups_per_step groups each). The oldest groups are dropped first, until the step's rounds are used up. Then the
        step takes all groups. The count of drops is in the store, so an interruption does not change which groups a
        step takes.
        """
        left = self.section.dynamic_sampling * self.section.groups_per_step
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
        self.drop(uniform, log=log.info)
        return kept

    def _read(self, groups: list[str]) -> Iterator[tuple[str, list[Episode]]]:
        """Yields each group with its episodes.

        Leaves out a group with a lost body. The store issues its tickets again, as long as no manifest names the group.
        """
        for group in groups:
            episodes = self.store.episodes(group)
            if is_complete(episodes):
                yield group, episodes

    def drop(self, reasons: Mapping[str, str], *, log: Callable[..., object] = log.warning) -> None:
        """Drops groups. `reasons`: group -> reason. Writes their finished episodes to the archive first.

        The store drops all of them at once: a learner that dies before that drops the same groups again.
        """
        if not reasons:
            return
        dropped = self.store.to_drop(reasons)
        for drop in dropped:
            self.heartbeat.meters("gagpo_groups_dropped_total", reason=reason_class(drop.reason)).inc()
            log("group dropped", group=drop.group, task=drop.task, reason=drop.reason)
        self.archive.write_dropped(dropped)
        self.store.drop(self.lease, *dropped)
