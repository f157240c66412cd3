"""The health of a run: rules that find runs which do not learn, or get worse. The report, `status` and the view
show their findings, and the metric gagpo_health_warning has them. deploy/prometheus/rules.yml has alerts for shares, a
gradient of 0, entropy and both findings about success, but none for "states", "length" and a gradient that is not
finite.

No threshold was crossed by any of the 65 runs of lab/experiments/credit/README.md, which all learned something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean
from typing import Any

from deploy.runs.comparison import evaluation_kind, gain_of
from services.config.sections import LEAST_MIXED, CreditSection
from services.telemetry.catalogue import HEALTH_RULES
from services.telemetry.evaluations import curve_of

Row = Mapping[str, Any]
WINDOW = 3
"""Learner steps over which a share is averaged, so that one unlucky step is not a finding."""
LOST_STEPS = 5
"""Learner steps in a row without a won episode that are a finding. No step of 291 recorded runs was without one."""
SOLVED = 0.9
"""From this success of training episodes on, low entropy is no finding."""
FORMAT = ("choose another env.prompt or model.path, or show the form in a cold start (sft.enabled=true, or more "
          "sft.minutes)")
STATES = "states"
"""Name of the rule about the states in which turns are compared."""
STRONGER = "start from a stronger policy (a longer cold start, or another model.path if sft.enabled is false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """One finding about the present state of a run."""

    rule: str
    text: str
    """The finding with its number, then what to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRule:
    """`find` takes the rows of metrics.jsonl, at least one, and returns a finding or None. Before the first learner
    step, the only row is the evaluation of the policy that the run starts from."""

    name: str
    keys: tuple[str, ...]
    """The keys of metrics.jsonl that it reads. docs/operate/does-not-learn.md has a row for each of them."""
    find: Callable[[Sequence[Row]], str | None]
    fix: str


def _share_rule(name: str, key: str, limit: float, what: str, fix: str) -> HealthRule:
    """Returns a rule about a share whose mean over the last WINDOW steps is too large."""
    def find(rows: Sequence[Row]) -> str | None:
        share = _mean(rows, key) or 0.0
        return f"{share:.0%} of the {what}" if share >= limit else None
    return HealthRule(name=name, keys=(key,), find=find, fix=fix)


def _no_success(rows: Sequence[Row]) -> str | None:
    """Finds a run whose last steps won nothing: then only penalties differ, if anything does."""
    lost = len(list(takewhile(lambda row: row["success_rate"] == 0, reversed(rows))))
    return f"no episode was won in the last {lost} learner steps" if lost >= LOST_STEPS else None


def _nothing_to_learn(rows: Sequence[Row]) -> str | None:
    last = rows[-1]
    if last.get("credit/flat_share") != 1 or last["success_rate"] is None:
        return None
    return (f"nothing can be learned from step {last['step']}: in every group all episodes earned the same "
            f"({last['success_rate']:.0%} success)")


def _no_gradient(rows: Sequence[Row]) -> str | None:
    if "grad_norm" not in rows[-1]:
        return None
    norm = rows[-1]["grad_norm"]
    if norm is None:
        return f"the gradient of step {rows[-1]['step']} is not finite"
    return f"the gradient of step {rows[-1]['step']} is 0: the weights do not move" if norm < 1e-8 else None


def _entropy(rows: Sequence[Row]) -> str | None:
    """Finds a policy that has become certain of actions that lose. One that wins may be certain."""
    if _first_and_last(rows, "success_rate")[1] >= SOLVED:
        return None
    first, last = _first_and_last(rows, "loss/entropy")
    return (f"the policy's entropy has fallen from {first:.2g} to {last:.2g} nats per token"
            if first > 0 and last < 0.2 * first else None)


def _length(rows: Sequence[Row]) -> str | None:
    """Finds episodes that became shorter while fewer are won. Shorter episodes alone are progress."""
    first, last = _first_and_last(rows, "episode_length")
    won_first, won_last = _first_and_last(rows, "success_rate")
    return (f"episodes have become shorter ({first:.1f} to {last:.1f} turns) and are won less often "
            f"({won_first:.0%} to {won_last:.0%})" if last < 0.5 * first and won_last < won_first else None)


def _first_and_last(rows: Sequence[Row], key: str) -> tuple[float, float]:
    """Returns the means over the first and the last WINDOW steps that have the key; zeros if none has."""
    values = [row[key] for row in rows if row.get(key) is not None] or [0.0]
    return fmean(values[:WINDOW]), fmean(values[-WINDOW:])


RULES = (
    # Healthy runs cut less than one in a hundred. A cut answer has mostly lost its action, and is trained on as it is.
    _share_rule("cut answers", "cut_share", 0.1, "answers were cut at their limit of tokens",
                "raise rollout.max_response_tokens (and an agent's own max_tokens), or ask for shorter answers"),
    # No healthy step had more than 18%.
    _share_rule("invalid actions", "invalid_share", 0.2, "answers hold no well-formed action", FORMAT),
    # Small policies guess, so healthy runs started with up to 86%.
    _share_rule("inadmissible actions", "inadmissible_share", 0.9, "actions are not admissible", STRONGER),
    HealthRule(name="no success", keys=("success_rate",), find=_no_success, fix=f"{STRONGER}, or choose easier games"),
    HealthRule(name="nothing to learn", keys=("credit/flat_share", "success_rate"), find=_nothing_to_learn,
               fix=f"{STRONGER}, or choose games that are neither all won nor all lost"),
    # A group without differences teaches nothing. If nine tenths have none, a step learns from a tenth of its episodes.
    _share_rule("flat groups", "credit/flat_share", 0.9, "groups have no spread: all their episodes earned the same",
                "raise learner.group_size, or set learner.dynamic_sampling"),
    HealthRule(name="no gradient", keys=("grad_norm",), find=_no_gradient,
               fix="check learner.lr, learner.grad_clip and the credit options"),
    # Healthy runs kept more than a third of their entropy, and most gained some.
    HealthRule(name="entropy", keys=("loss/entropy",), find=_entropy,
               fix="raise learner.loss.entropy, or lower learner.lr"),
    # Healthy runs halved their episodes as they won more of them.
    HealthRule(name="length", keys=("episode_length",), find=_length,
               fix="lower learner.lr, or go back to the best checkpoint"),
)
"""Rules in the order of display, which is that of docs/operate/does-not-learn.md. Each finding is shown, except that
"nothing to learn" stands for "flat groups": all groups are flat."""


def warnings(metrics: Sequence[Row], evaluations: Sequence[Row], credit: CreditSection | None = None, *,
             agents: bool = False) -> list[HealthWarning]:
    """Returns the present warnings about a run, [] if it is healthy.

    `metrics` and `evaluations`: rows as read_metrics and read_evaluations return them, in order. `credit`: the run's
    section `learner.credit`; None if it cannot be read. `agents`: whether agents with code of their own play.
    """
    rows = metrics or [row for row in curve_of(evaluations)[:1] if row["step"] == 0]
    findings = {rule.name: HealthWarning(rule=rule.name, text=f"{text}; {rule.fix}")
                for rule in RULES if rows and (text := rule.find(rows))}
    if "nothing to learn" in findings:
        findings.pop("flat groups", None)
    every = [*findings.values(), *_pooling(metrics, credit, agents=agents), *_falling(evaluations)]
    return sorted(every, key=lambda one: HEALTH_RULES.index(one.rule))


def _pooling(metrics: Sequence[Row], credit: CreditSection | None, *, agents: bool) -> list[HealthWarning]:
    """Finds states that leave nothing to compare, or that pool unlike turns."""
    alone, mixed = (_mean(metrics, f"credit/{name}_share") for name in ("singleton", "mixed"))
    if credit is None or alone is None or max(alone, mixed or 0.0) < LEAST_MIXED:
        return []
    from learner.credit.registry import describe_states

    texts = describe_states(alone, mixed, credit, source="agents" if agents else "run")
    return [HealthWarning(rule=STATES, text="; ".join(texts))] if texts else []


def _mean(metrics: Sequence[Row], key: str) -> float | None:
    """Returns the mean of a share over the last WINDOW steps; None if no row has it."""
    values = [row[key] for row in metrics[-WINDOW:] if row.get(key) is not None]
    return fmean(values) if values else None


def _falling(evaluations: Sequence[Row]) -> list[HealthWarning]:
    """Finds a last evaluation that is at least ten points below the best, if the paired interval excludes zero.

    Only evaluations on the same split and at the same temperature count: a run may continue with others.
    The best is chosen from all evaluations before the last, so the interval holds for that many comparisons. By chance
    alone, the best of thirty evaluations of one policy is far above the last.
    """
    curve = curve_of(evaluations)
    curve = [row for row in curve if evaluation_kind(row) == evaluation_kind(curve[-1])]
    if len(curve) < 2:
        return []
    best, last = max(curve, key=lambda row: row["success_rate"]), curve[-1]
    gain = gain_of(best, last, comparisons=len(curve) - 1)
    if best["success_rate"] - last["success_rate"] < 0.1 or gain is None or gain[2] >= 0:
        return []
    return [HealthWarning(rule="success", text=(
        f"success has fallen from {best['success_rate']:.0%} at step {best['step']} to {last['success_rate']:.0%} at "
        f"step {last['step']}; lower learner.lr, and take the best checkpoint by `gagpo export --which best`"))]
