"""Divides the wall time of a run's learner steps into parts, and computes its tokens per second.

    part        seconds of metrics.jsonl
    sampling    wait: the learner waits for episodes; sampling while it trains is not included
    evaluation  evaluation: the learner waits until the version before is evaluated
    passes      forward_backward
    optimizer   optimizer
    publishing  publish
    rest        credit, pack, checkpoint, and time outside all phases

The parts of a step add up to its wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.amounts import rounded

PARTS: Mapping[str, str] = {"sampling": "wait", "evaluation": "evaluation", "passes": "forward_backward",
                            "optimizer": "optimizer", "publishing": "publish"}
"""Part -> its phase."""
REST = "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """The means of learner steps."""

    steps: int
    seconds: Mapping[str, float]
    """Part -> seconds. They add up to the wall time of a step."""
    sampled: float
    """Tokens that the policy sampled, per second of wall time."""
    trained: float
    """Tokens in the learner's rows, prompts included, per second of wall time."""

    @property
    def wall(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())


def step_times(rows: Iterable[Mapping[str, Any]]) -> MeanStep | None:
    """Returns the times of learner steps; None if no row has any. `rows`: those of metrics.jsonl, where a row of an
    older version has no wall time: then it is the sum of its phases."""
    timed = [(row, wall) for row in rows if (wall := _wall(row)) > 0]
    if not timed:
        return None
    number, total = len(timed), sum(wall for _, wall in timed)
    seconds = {part: sum(row.get(f"seconds/{phase}") or 0.0 for row, _ in timed) / number
               for part, phase in PARTS.items()}
    seconds[REST] = max(0.0, total / number - sum(seconds.values()))
    return MeanStep(steps=number, seconds=seconds, **{
        kind: sum(row.get(f"tokens_{kind}") or 0.0 for row, _ in timed) / total for kind in ("sampled", "trained")})


def _wall(row: Mapping[str, Any]) -> float:
    return row.get("step_seconds") or sum(value or 0.0 for key, value in row.items() if key.startswith("seconds/"))


def as_line(times: MeanStep) -> str:
    """Returns `12.3 s a step: sampling 61%, evaluation 3%, ...; 310 tokens/s sampled, 2,480 trained`."""
    shares = whole_percents(list(times.seconds.values()))
    parts = ", ".join(f"{part} {share}%" for part, share in zip(times.seconds, shares, strict=True))
    return (f"{rounded(times.wall)} s a step: {parts}; {rounded(times.sampled)} tokens/s sampled, "
            f"{rounded(times.trained)} trained")


def whole_percents(amounts: Sequence[float]) -> list[int]:
    """Returns the shares of a sum in full percents that add up to 100: the largest remainders are rounded up."""
    exact = [100 * amount / sum(amounts) for amount in amounts]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: shares[index] - exact[index])
    for index in by_remainder[:100 - sum(shares)]:
        shares[index] += 1
    return shares
