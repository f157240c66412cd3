"""Every metric that the system exports: its name, type, labels and meaning. Light: no imports of ours.

Names follow the Prometheus conventions: prefix gagpo_, base units, `_total` for counters, `_ratio` for values in
[0, 1]. A label is bounded by its list of values, or by a number of distinct values; further ones count as `other`.
Metrics that heartbeats carry have a further label `worker`; services/telemetry/exposition.py adds and
bounds it.
`python -m lab.reference` makes docs/reference/metrics.md from this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["environment", "rollout", "learner", "controller", "weights"]
Bound = tuple[str, ...] | int
Snapshot = dict[str, list[tuple[str, dict[str, str], float | None]]]
"""Samples of a process: a dict from declared name to samples, each (full name, labels, value)."""

TURN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
QUEUE_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
ENGINE_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
LENGTH_BUCKETS = (1, 2, 5, 10, 15, 20, 30, 40, 50, 75, 100)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PHASES = ("wait", "credit", "pack", "forward_backward", "optimizer", "evaluation", "publish", "checkpoint")
_CLASSES = {
    "env: ": "env", "agent: ": "agent", "engine: ": "engine", "store: ": "store", "episode: ": "episode",
    "worker": "worker_lost", "nobody has the weights": "weights_gone", "over-age": "over_age",
    "uniform reward": "uniform_reward"}
"""Beginning of a drop's reason -> its class."""
DROP_REASONS = (*_CLASSES.values(), "other")

HEALTH_RULES = ("cut answers", "invalid actions", "inadmissible actions", "no success", "nothing to learn",
                "flat groups", "states", "no gradient", "entropy", "length", "success")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One metric."""

    name: str
    """The name as Prometheus shows it, with `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    roles: tuple[Role, ...]
    help: str
    labels: Mapping[str, Bound] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def adds_up(self) -> bool:
        """Whether the values of several workers make a sum. A gauge of a step, a ratio or a lag makes none."""
        return self.kind != "gauge" or self.name in ("gagpo_rollout_slots", "gagpo_rollout_tickets")


def _declare(role: Role, kind: Literal["counter", "gauge"], name: str, text: str, /, **labels: Bound) -> Declared:
    return Declared(name=f"gagpo_{name}", kind=kind, roles=(role,), help=text, labels=labels)


def _histogram(role: Role, name: str, buckets: tuple[float, ...], text: str, /,
               **labels: Bound) -> Declared:
    return Declared(name=f"gagpo_{name}", kind="histogram", roles=(role,), help=text, labels=labels, buckets=buckets)


ENVIRONMENT = (
    _declare("environment", "counter", "env_resets_total", "Resets answered, repeated ones included."),
    _declare("environment", "counter", "env_steps_total", "Steps answered, repeated ones included."),
    _declare("environment", "counter", "env_replays_total", "Sessions rebuilt from their actions."),
    _declare("environment", "counter", "env_errors_total", "Refused requests and elements.", type=32),
    _declare("environment", "gauge", "env_sessions", "Live sessions."),
    _declare("environment", "gauge", "env_sessions_limit", "Sessions that may live at once."),
    _declare("environment", "counter", "env_sessions_expired_total", "Sessions dropped as idle, or for memory."),
    _declare("environment", "gauge", "env_resident_memory_bytes",
             "Resident memory of the server and its engine processes."),
    _histogram("environment", "env_reset_seconds", ENGINE_BUCKETS, "Starting an episode.", environment=4),
    _histogram("environment", "env_step_seconds", ENGINE_BUCKETS, "One step of a live session.", environment=4),
    _histogram("environment", "env_replay_seconds", ENGINE_BUCKETS,
               "One step whose session was rebuilt first, rebuilding included.",
               environment=4),
    _histogram("environment", "env_request_seconds", ENGINE_BUCKETS, "Whole requests, by route.", route=8),
)
ROLLOUT = (
    _declare("rollout", "counter", "rollout_episodes_total",
             "Episodes by outcome. Refused: another worker had committed the ticket before. Failed: the episode ended "
             "in a fault.", outcome=("accepted", "refused", "failed")),
    _declare("rollout", "counter", "rollout_episode_ends_total", "Finished episodes by their end.",
             end=("won", "lost", "turns", "context")),
    _declare("rollout", "counter", "rollout_tokens_total", "Tokens put in and sampled.", kind=("prompt", "response")),
    _declare("rollout", "counter", "rollout_env_steps_total", "Turns of finished episodes."),
    _declare("rollout", "counter", "rollout_replays_total", "Sessions that servers had to rebuild for this worker."),
    _declare("rollout", "counter", "rollout_redeliveries_total",
             "Claimed tickets that were claimed before, by any worker."),
    _declare("rollout", "gauge", "rollout_slots", "Episodes that the worker may play at once."),
    _declare("rollout", "gauge", "rollout_tickets",
             "Tickets that the worker has claimed. Held ones wait for a version or a slot.",
             state=("playing", "held")),
    _declare("rollout", "gauge", "rollout_kv_used_ratio", "Share of the engine's KV cache that requests hold."),
    _declare("rollout", "gauge", "rollout_version_incarnation", "Learner incarnation of the weights held."),
    _declare("rollout", "gauge", "rollout_version_step", "Learner step of the weights held."),
    _declare("rollout", "gauge", "rollout_version_lag_steps", "Learner steps by which they are behind the newest."),
    _declare("rollout", "gauge", "rollout_version_lag_incarnations",
             "Learner incarnations by which they are behind the newest."),
    _histogram("rollout", "rollout_queue_seconds", QUEUE_BUCKETS,
               "From the moment when a worker's weights may play a ticket to the start of its first episode."),
    _histogram("rollout", "rollout_turn_seconds", TURN_BUCKETS, "One answer of the engine, its queue included."),
    _histogram("rollout", "rollout_episode_seconds", QUEUE_BUCKETS, "One episode."),
    _histogram("rollout", "rollout_episode_length_steps", LENGTH_BUCKETS, "Turns of an episode."),
    _histogram("rollout", "rollout_update_seconds", TURN_BUCKETS, "Pause of the sampler for one weight update."),
)
STORE = (
    _declare("controller", "counter", "store_groups_issued_total", "Training groups issued."),
    _declare("controller", "counter", "store_groups_trained_total", "Training groups in manifests."),
    _declare("controller", "counter", "store_groups_dropped_total", "Training groups dropped, by any process."),
    _declare("controller", "gauge", "store_groups_ready", "Finished groups that wait to be read.",
             kind=("train", "eval")),
    _declare("controller", "gauge", "store_tickets", "Unplayed tickets: waiting, or claimed by a worker.",
             state=("waiting", "claimed")),
    _declare("controller", "gauge", "store_oldest_ticket_age_seconds", "Age of the oldest unplayed ticket."),
    _declare("controller", "gauge", "store_retained_bytes", "Bytes of all episodes in the store."),
)
DROPS = Declared(
    name="gagpo_groups_dropped_total", kind="counter", roles=("controller", "learner"),
    help="Groups that this process dropped, by class of reason.", labels={"reason": DROP_REASONS})
CONTROLLER = (
    _declare("controller", "gauge", "controller_capacity_groups", "Training groups that may still be issued now."),
    _declare("controller", "gauge", "controller_state", "1 for the present activity of the controller, 0 for others.",
             state=("starting", "training", "evaluating")),
    _declare("controller", "gauge", "controller_progress_timestamp_seconds",
             "Time of the last progress: a count of the store, a turn, a weight update or a learner step; before the "
             "first one, the controller's start. It also moves while a role has no ready process."),
    _declare("controller", "counter", "controller_restarts_total", "Deaths after which a process is started again."),
    _declare("controller", "gauge", "controller_members",
             "Processes that the controller supervises. Unplaced: waiting for room on the cluster. Sick: died three "
             "times or more in ten minutes.", role=("environment", "rollout", "learner"),
             state=("running", "starting", "unplaced", "sick", "draining")),
    _declare("controller", "gauge", "controller_wanted_members", "Processes that should run.",
             role=("environment", "rollout")),
    _declare("controller", "gauge", "health_warning", "1 while this rule of the run's health finds something, else 0.",
             rule=HEALTH_RULES),
    _declare("controller", "gauge", "eval_step", "Learner step of the last evaluation."),
    _declare("controller", "gauge", "eval_success_ratio", "Success in the last evaluation, `all` and by task type.",
             task_type=32),
    _declare("controller", "gauge", "eval_episode_length_steps", "Mean turns in the last evaluation."),
)
LEARNER = (
    _declare("learner", "counter", "learner_steps_total", "Learner steps taken by this process."),
    _declare("learner", "gauge", "learner_step", "Learner steps that the weights have taken."),
    _declare("learner", "counter", "learner_phase_seconds_total", "Time spent, by phase of a step.", phase=PHASES),
    _declare("learner", "counter", "learner_tokens_total", "Sampled: of the groups trained on, and of "
             "those that dynamic sampling replaced. Trained: of the former alone, prompts included.",
             kind=("sampled", "trained")),
    _declare("learner", "gauge", "learner_loss", "Parts of the last step's loss.",
             part=("policy", "value", "kl", "entropy")),
    _declare("learner", "gauge", "learner_gradient_norm", "Gradient norm of the last step, before clipping."),
    _declare("learner", "gauge", "learner_clipped_ratio", "Share of ratios outside the clip range."),
    _declare("learner", "gauge", "learner_importance_ratio_mean", "Mean of new over old probability."),
    _declare("learner", "gauge", "learner_logprob_difference",
             "Absolute difference between the learner's and the sampler's logprobs, per token.", stat=("mean", "max")),
    _declare("learner", "gauge", "learner_flop_utilization_ratio",
             "FLOPs of the last step's passes divided by the peak of its GPUs; absent on CPUs and in float32."),
    _declare("learner", "gauge", "learner_staleness_steps", "Age of the episodes when they are trained on.",
             stat=("mean", "max")),
    _declare("learner", "gauge", "learner_checkpoint_timestamp_seconds",
             "Time when the newest checkpoint was on disk; before the first, the learner's start."),
    DROPS,
    _declare("learner", "gauge", "train_success_ratio", "Success of the episodes of the last step."),
    _declare("learner", "gauge", "train_episode_return",
             "Mean return of the episodes of the last step, scaled as in training."),
    _declare("learner", "gauge", "train_episode_length_steps", "Mean turns of the episodes of the last step."),
    _declare("learner", "gauge", "train_steps_ratio", "Share of turns of the last step that were not well-formed, or "
             "not admissible, or whose answer was cut at its limit.", kind=("invalid", "inadmissible", "cut")),
    _declare("learner", "gauge", "train_turn_tokens", "Tokens of a turn of the last step.", part=("prompt", "response"),
             stat=("mean", "max")),
    _histogram("learner", "credit_state_group_size", SIZE_BUCKETS,
               "Number of turns of the same group that share a turn's state, one observation per turn."),
    _declare("learner", "gauge", "credit_singleton_ratio",
             "Share of turns whose state no other turn of the group has."),
    _declare("learner", "gauge", "credit_active_ratio", "Share of turns with an advantage other than 0."),
    _declare("learner", "gauge", "credit_flat_groups_ratio",
             "Share of groups without spread: all their turns have advantage 0."),
    _declare("learner", "gauge", "credit_advantage_iqr", "Interquartile range of the advantages."),
    _declare("learner", "gauge", "credit_advantage_above_one_ratio", "Share of advantages above 1 or below -1."),
)
CATALOGUE: Mapping[str, Declared] = {
    one.name: one for one in (*ENVIRONMENT, *ROLLOUT, *LEARNER, *STORE, *CONTROLLER)}


def reason_class(reason: str) -> str:
    """Returns the class of a drop's reason, one of DROP_REASONS."""
    return next((name for start, name in _CLASSES.items() if reason.startswith(start)), "other")
