"""The gauges of one learner step: its line of metrics.jsonl, and the sizes of the groups of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from learner.credit.types import Credit
from services.telemetry.heartbeat import Pulse
from services.telemetry.overhead import counted

GAUGES = {
    "grad_norm": ("gagpo_learner_gradient_norm", {}), "clip_fraction": ("gagpo_learner_clipped_ratio", {}),
    "ratio_mean": ("gagpo_learner_importance_ratio_mean", {}), "step": ("gagpo_learner_step", {}),
    "success_rate": ("gagpo_train_success_ratio", {}), "episode_return": ("gagpo_train_episode_return", {}),
    "episode_length": ("gagpo_train_episode_length_steps", {}),
    **{f"loss/{part}": ("gagpo_learner_loss", {"part": part}) for part in ("policy", "value", "kl", "entropy")},
    **{f"logprob_difference_{stat}": ("gagpo_learner_logprob_difference", {"stat": stat}) for stat in ("mean", "max")},
    **{f"staleness_{stat}": ("gagpo_learner_staleness_steps", {"stat": stat}) for stat in ("mean", "max")},
    **{f"{kind}_share": ("gagpo_train_steps_ratio", {"kind": kind}) for kind in ("invalid", "inadmissible", "cut")},
    **{f"{part}_tokens_{stat}": ("gagpo_train_turn_tokens", {"part": part, "stat": stat})
       for part in ("prompt", "response") for stat in ("mean", "max")},
    "credit/singleton_share": ("gagpo_credit_singleton_ratio", {}),
    "credit/active_share": ("gagpo_credit_active_ratio", {}),
    "credit/flat_share": ("gagpo_credit_flat_groups_ratio", {}),
    "credit/advantage_iqr": ("gagpo_credit_advantage_iqr", {}),
    "credit/share_above_one": ("gagpo_credit_advantage_above_one_ratio", {}),
}
"""Key of metrics.jsonl -> the gauge that shows its last value, and its labels."""


@counted("metrics")
def step_taken(pulse: Pulse, row: Mapping[str, Any], credits: Sequence[Credit], utilization: float | None) -> None:
    """Sets the meters of one learner step. `row` has all METRIC_KEYS; `utilization` is a share of the GPUs' FLOPs."""
    meters = pulse.meters
    for key, (name, labels) in GAUGES.items():
        meters(name, **labels).set(row[key])
    meters("gagpo_learner_steps_total").inc()
    for kind in ("sampled", "trained"):
        meters("gagpo_learner_tokens_total", kind=kind).inc(row[f"tokens_{kind}"])
    for key, seconds in row.items():
        if key.startswith("seconds/"):
            meters("gagpo_learner_phase_seconds_total", phase=key.removeprefix("seconds/")).inc(seconds)
    if utilization is not None:
        meters("gagpo_learner_flop_utilization_ratio").set(utilization)
    sizes = meters("gagpo_credit_state_group_size")
    for credit in credits:
        for size in Counter(chain.from_iterable(credit.states)).values():
            for _ in range(size):
                sizes.observe(size)
    pulse.progressed()
    pulse.holds(str(row["version"]))
