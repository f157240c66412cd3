"""The metrics and heartbeat of the controller. It also reports the store, which has no process of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from services.config.tree import Config
from services.controller.supervise import Supervisor
from services.controller.tickets import demand_of
from services.store.store import Store
from services.telemetry.catalogue import CATALOGUE, reason_class
from services.telemetry.heartbeat import Heartbeat


class Telemetry:
    """The controller's heartbeat: its metrics and its present activity. All methods are thread-safe."""

    def __init__(self) -> None:
        self.heartbeat = Heartbeat("controller", "controller")
        self.state("starting", "starting")
        self.heartbeat.meters("gagpo_controller_progress_timestamp_seconds").set_to_current_time()

    def state(self, name: str, doing: str) -> None:
        """Sets the controller's present activity: `name` is one of the declared states, `doing` a text for people."""
        self._mark("gagpo_controller_state", "state", {name})
        self.heartbeat.doing(doing)

    def _mark(self, name: str, label: str, present: Collection[str]) -> None:
        """Sets a gauge to 1 for the values of its label that are present, and to 0 for the others."""
        values = CATALOGUE[name].labels[label]
        assert isinstance(values, tuple)
        for value in values:
            self.heartbeat.meters(name, **{label: value}).set(value in present)

    def moved(self, version: str) -> None:
        """Records progress: a count of the store, a turn, a weight update or a learner step.

        `version`: short name of the current version.
        """
        self.heartbeat.progressed()
        self.heartbeat.holds(version)
        self.heartbeat.meters("gagpo_controller_progress_timestamp_seconds").set_to_current_time()

    def dropped(self, reason: str) -> None:
        """Counts a group that the controller has dropped."""
        self.heartbeat.meters("gagpo_groups_dropped_total", reason=reason_class(reason)).inc()

    def warned(self, rules: Collection[str]) -> None:
        """Exports the health warnings that hold now. `rules`: the names of their rules."""
        self._mark("gagpo_health_warning", "rule", rules)

    def evaluated(self, summary: Mapping[str, Any]) -> None:
        """Exports an evaluation. `summary`: a row of evaluations.jsonl; values that a damaged one lacks are null."""
        meters = self.heartbeat.meters
        meters("gagpo_eval_step").set(summary["step"])
        if summary["episode_length"] is not None:
            meters("gagpo_eval_episode_length_steps").set(summary["episode_length"])
        for task_type, rate in {"all": summary["success_rate"], **summary["success_by_type"]}.items():
            if rate is not None:
                meters("gagpo_eval_success_ratio", task_type=task_type).set(rate)

    def fill(self, store: Store, config: Config, supervisor: Supervisor) -> None:
        """Updates the metrics of the store and of the supervised processes. Called before each heartbeat."""
        counts, backlog, meters = store.counts(), store.backlog(), self.heartbeat.meters
        meters.follow("gagpo_store_groups_issued_total", counts.issued)
        meters.follow("gagpo_store_groups_trained_total", counts.trained)
        meters.follow("gagpo_store_groups_dropped_total", counts.dropped)
        meters.follow("gagpo_controller_restarts_total", supervisor.total_restarts)
        wanted: dict[str, int] = {"environment": 0, "rollout": 0}
        for (role, state), count in supervisor.states().items():
            meters("gagpo_controller_members", role=role, state=state).set(count)
            if role in wanted and state != "draining":
                wanted[role] += count
        for role, count in wanted.items():
            meters("gagpo_controller_wanted_members", role=role).set(count)
        self.heartbeat.sick(supervisor.sick())
        meters("gagpo_store_groups_ready", kind="train").set(counts.ready_groups)
        meters("gagpo_store_groups_ready", kind="eval").set(counts.ready_eval)
        meters("gagpo_store_tickets", state="waiting").set(backlog.waiting)
        meters("gagpo_store_tickets", state="claimed").set(backlog.claimed)
        meters("gagpo_store_oldest_ticket_age_seconds").set(backlog.oldest_s)
        meters("gagpo_store_retained_bytes").set(backlog.retained_bytes)
        limit = demand_of(store, config, counts).limit
        meters("gagpo_controller_capacity_groups").set(max(0, limit - counts.issued + counts.dropped))
