"""How the log-linear policy learns from the credit of a learner step: one step of Adam, or PPO's minibatches.

    once           g = mean over all turns of A ∇ log π                     one step
    minibatches    g = mean over a minibatch of A r ∇ log π, r = π / π_old, a step each; 0 beyond PPO's clip
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lab.experiments.loglinear.policy import DIMENSIONS, Decision, Floats, Play, probabilities, score_gradient
from learner.credit.types import Credit

BETAS = (0.9, 0.999)
CLIP = 0.2
"""Ratios beyond 1 ± CLIP that the advantage would push further add nothing, as in the runs of the transformer."""


class Adam:
    """Gradient ascent with Adam on one vector of weights."""

    def __init__(self, rate: float, *, betas: tuple[float, float] = BETAS, theta: Floats | None = None) -> None:
        self.theta = np.zeros(DIMENSIONS) if theta is None else theta.copy()
        self._rate, self._betas, self._steps = rate, betas, 0
        self._m, self._v = np.zeros(DIMENSIONS), np.zeros(DIMENSIONS)

    def step(self, gradient: Floats) -> None:
        """Takes one step along `gradient` [DIMENSIONS]."""
        (a, b), self._steps = self._betas, self._steps + 1
        self._m = a * self._m + (1 - a) * gradient
        self._v = b * self._v + (1 - b) * gradient**2
        scale = np.sqrt(self._v / (1 - b**self._steps)) + 1e-8
        self.theta = self.theta + self._rate * self._m / (1 - a**self._steps) / scale


def credited(groups: Sequence[Sequence[Play]], credits: Sequence[Credit]) -> Iterator[tuple[Decision, float]]:
    """Yields each turn of a learner step with its advantage."""
    for group, credit in zip(groups, credits, strict=True):
        for one, row in zip(group, credit.advantages, strict=True):
            yield from zip(one.turns, row, strict=True)


def gradient_of(turns: Sequence[tuple[Decision, float]]) -> Floats:
    """Returns the mean over all turns of A ∇ log π, [DIMENSIONS]."""
    gradient = np.zeros(DIMENSIONS)
    for turn, advantage in turns:
        if advantage:
            score_gradient(turn, advantage / len(turns), gradient)
    return gradient


def minibatch_steps(adam: Adam, turns: Sequence[tuple[Decision, float]], *, rows: int, rng: random.Random) -> None:
    """Takes one step of PPO for each minibatch of `rows` turns, in an order drawn from `rng`."""
    order = rng.sample(range(len(turns)), len(turns))
    for first in range(0, len(order), rows):
        part = [turns[i] for i in order[first:first + rows]]
        adam.step(gradient_of([_reweighted(turn, advantage, adam.theta) for turn, advantage in part]))


def _reweighted(turn: Decision, advantage: float, theta: Floats) -> tuple[Decision, float]:
    """Returns a turn as the present policy sees it, and its advantage times the ratio; 0 beyond the clip."""
    now = probabilities(theta, turn.features)
    ratio = float(now[turn.chosen] / turn.probabilities[turn.chosen])
    beyond = ratio > 1 + CLIP if advantage > 0 else ratio < 1 - CLIP
    return replace(turn, probabilities=now), 0.0 if beyond else ratio * advantage
