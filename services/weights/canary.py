"""Notices a sampler that plays other weights than it was sent.

Each published version carries the learner's logprobs of a few fixed prompts, its *canary*. After an update the sampler
computes them with the engine, and both must agree as far as rounding explains. That covers the entire way: the copy,
the transfer, vLLM's loading, and its kernels, both those that read a prompt and those that write an answer.

The first difference of a sampler is bounded by what rounding may cost (FIRST), later ones by GROWTH times the first. A
version that changed the learner's logprobs must also change the sampler's, in some bit. This detects an update
without any effect, even where one learner step moves logprobs by less than bfloat16 rounds. In bfloat16, a part of the
model that stays old is detected only once it moves logprobs beyond the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from services.records import Version

PROMPTS: list[list[int]] = [[32 + step * place % 61 for place in range(1, 13)] for step in (1, 3, 5, 7)]
"""Token ids from 33 to 92, in another order in each prompt. Any vocabulary has them, mostly for single characters, and
any context has room for them. The first ids and ids spread over the vocabulary are less likely, and in bfloat16 their
logprobs differ two to four times as much."""
ANSWER = 3
"""Tokens that the sampler answers to each prompt."""
FIRST, FIRST_NATS = 8.0, 1e-2
"""Bound of a sampler's first mean difference: so many units of the expected rounding, and at least so many nats."""
GROWTH = 5.0
"""Bound of a later one, in units of the first."""
LATER, LATER_NATS = 1.0, 1e-4
"""Lowest bound of a later one, in the same two units: the first one may be small by chance."""


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a version for PROMPTS: `Canary(logprobs=[-6.2, ...], rounding=0.08)`."""

    logprobs: list[float]
    """Logprobs of each prompt's tokens but the first, in nats, prompt by prompt."""
    rounding: float
    """Mean difference in nats that rounding is expected to make, roughly."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a sampler for PROMPTS, and for its own answers to them, in nats."""

    logprobs: list[float]
    """As in Canary."""
    written: list[float]
    """Logprobs of the tokens of the answers, as they were sampled one after another."""
    read: list[float]
    """Logprobs of the same tokens, as parts of a prompt."""


class CanaryCheck:
    """Compares one sampler's canaries with the learner's."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last: tuple[Version, Canary, Played] | None = None

    def fault(self, version: Version, sent: Canary, played: Played) -> str:
        """Returns what is wrong with `played` after an update to `version`; "" if nothing is. `sent`: the learner's."""
        gaps = _gap(played.logprobs, sent.logprobs), _gap(played.written, played.read)
        bound = (max(FIRST * sent.rounding, FIRST_NATS) if self._first is None else
                 max(GROWTH * self._first, LATER * sent.rounding, LATER_NATS))
        for gap, whose in zip(gaps, ("the learner's", "those of its own answers"), strict=True):
            if not gap <= bound:  # also if the gap is NaN
                return f"its logprobs differ from {whose} by {gap:.2g} nats a token, and rounding explains {bound:.2g}"
        if self._unchanged(version, sent, played):
            return "its logprobs are in every bit those of the version before"
        self._first, self._last = max(gaps) if self._first is None else self._first, (version, sent, played)
        return ""

    def _unchanged(self, version: Version, sent: Canary, played: Played) -> bool:
        """Whether the learner's weights and logprobs have changed, and the sampler's logprobs have not.

        A learner that was restarted may compute other bits with the same weights.
        """
        if self._last is None or version.incarnation != self._last[0].incarnation:
            return False
        before, learner, sampler = self._last
        return (version.digest != before.digest and sent.logprobs != learner.logprobs
                and played.logprobs == sampler.logprobs)


def _gap(one: Sequence[float], two: Sequence[float]) -> float:
    return float(np.abs(np.subtract(one, two)).mean())
