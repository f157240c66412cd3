"""A small decision process with exactly known values: corridors that branch and meet again in a few hubs.

States are in layers, and every action leads to the next layer. A layer that is `branching` times as wide as the one
before is a tree, so few episodes share its states. A narrow layer is a set of hubs through which many episodes pass.
The hubs of the last layer win with different probabilities. So there are many singleton states just before shared
states, which is where credit is hardest.

Estimators see the maze through a View, which can lengthen the corridors and split shared states, as prompts with a
history do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from learner.credit.types import CreditStep

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LAYERS = (1, 4, 16, 3, 12, 48, 3, 12, 48, 3)
BRANCHING = 4
HUBS = (0.6, 0.3, 0.1)
"""Probabilities that a corridor ends in the first, second and third hub. The good hub is rare."""
WINS = (0.05, 0.5, 0.95)
"""Probability to win from each hub of the last layer."""
REWARD = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Maze:
    """The maze. `successor`: int64 [states, actions], -1 in the last layer. `win`: float64 [states], 0 before it."""

    successor: Ints
    win: Floats
    gamma: float
    layers: int

    @property
    def steps(self) -> int:
        """Returns the number of steps of an episode."""
        return self.layers

    def values(self, policy: Floats) -> tuple[Floats, Floats]:
        """Returns the exact discounted V [states] and Q [states, actions] of the policy [states, actions]."""
        q = np.repeat((self.win * REWARD)[:, None], BRANCHING, axis=1)
        v = self.win * REWARD
        inner = self.successor[:, 0] >= 0
        for _ in range(self.layers):
            q[inner] = self.gamma * v[self.successor[inner]]
            v = np.where(inner, (policy * q).sum(1), v)
        return v, q

    def success(self, policy: Floats) -> float:
        """Returns the exact probability to win from the start."""
        return float(self.values(policy)[0][0] / (REWARD * self.gamma ** (self.layers - 1)))

    def play(self, policy: Floats, episodes: int, rng: np.random.Generator) -> tuple[Ints, Ints, Floats]:
        """Returns states [episodes, steps], actions [episodes, steps] and final rewards [episodes]."""
        states = np.zeros((episodes, self.steps), dtype=np.int64)
        actions = np.zeros_like(states)
        cumulative = np.cumsum(policy, axis=1)[:, :-1]
        now = states[:, 0]
        for t in range(self.steps):
            states[:, t] = now
            actions[:, t] = (rng.random(episodes)[:, None] > cumulative[now]).sum(1)
            now = self.successor[now, actions[:, t]]
        won = rng.random(episodes) < self.win[states[:, -1]]
        return states, actions, np.where(won, REWARD, 0.0)


def make_maze(seed: int, gamma: float) -> Maze:
    """Makes a maze whose corridors end in hubs with the probabilities HUBS. The same seed gives the same maze."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(LAYERS)])
    successor = np.full((starts[-1], BRANCHING), -1, dtype=np.int64)
    for layer, (width, following) in enumerate(pairwise(LAYERS)):
        rows = slice(starts[layer], starts[layer] + width)
        tree = following == width * BRANCHING
        targets = np.arange(following) if tree else rng.choice(following, size=width * BRANCHING, p=HUBS)
        successor[rows] = starts[layer + 1] + targets.reshape(width, BRANCHING)
    win = np.zeros(starts[-1])
    win[starts[-2]:] = WINS
    return Maze(successor=successor, win=win, gamma=gamma, layers=len(LAYERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The form in which an estimator sees an episode of the maze."""

    history: int = 0
    """Number of previous states that are part of a state's key."""
    corridor: int = 0
    """Extra steps after each step, without a decision. Episodes with the same action in the same state share them."""

    def group(self, states: Ints, actions: Ints, rewards: Floats) -> list[list[CreditStep]]:
        """Returns the episodes for estimators, [K][steps * (1 + corridor)], with the reward at the last step."""
        return [self._episode(*row) for row in zip(states.tolist(), actions.tolist(), rewards.tolist(), strict=True)]

    def decided(self, credit: list[list[float]]) -> Floats:
        """Returns the credit of the maze's own steps, [K, steps], from that of all steps."""
        return np.array(credit)[:, ::self.corridor + 1]

    def _episode(self, states: list[int], actions: list[int], reward: float) -> list[CreditStep]:
        keys = []
        for t, action in enumerate(actions):
            key = "-".join(map(str, states[max(0, t - self.history):t + 1]))
            keys += [key, *(f"{key}/{action}/{j}" for j in range(self.corridor))]
        return [CreditStep(state=key, reward=0.0) for key in keys[:-1]] + [CreditStep(state=keys[-1], reward=reward)]


def softmax(logits: Floats) -> Floats:
    """Returns probabilities from logits, [states, actions]."""
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def score_gradient(policy: Floats, states: Ints, actions: Ints, advantages: Floats) -> Floats:
    """Returns Σ A ∇log π over all steps, the gradient by the logits [states, actions]."""
    gradient = np.zeros_like(policy)
    np.add.at(gradient, (states, actions), advantages)
    return gradient - policy * gradient.sum(1, keepdims=True)
