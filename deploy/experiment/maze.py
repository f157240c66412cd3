"""A small decision process whose values are known exactly: corridors that fan out and meet again in a few hubs.

Layers of states; every action leads one layer on. A layer `branching` times as wide as the one before is a tree, so its
states are met by few episodes or by one; a narrow layer is a set of hubs that many episodes pass. The last layer's hubs
win with different chances. So there are many singletons just before shared states, where credit is hardest.

Estimators see it through a View, which may stretch it and show less of what is shared, as prompts with a history do.
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
"""Chances that a corridor ends in the first, second, third hub: the good one is rare."""
WINS = (0.05, 0.5, 0.95)
"""Chance to win from each hub of the last layer."""
REWARD = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Maze:
    """`successor` int64 [states, actions], -1 in the last layer; `win` float64 [states], 0 before the last layer."""

    successor: Ints
    win: Floats
    gamma: float
    layers: int

    @property
    def steps(self) -> int:
        """Of every episode."""
        return self.layers

    def values(self, policy: Floats) -> tuple[Floats, Floats]:
        """V [states] and Q [states, actions] of the policy [states, actions], discounted; exact."""
        q = np.repeat((self.win * REWARD)[:, None], BRANCHING, axis=1)
        v = self.win * REWARD
        inner = self.successor[:, 0] >= 0
        for _ in range(self.layers):
            q[inner] = self.gamma * v[self.successor[inner]]
            v = np.where(inner, (policy * q).sum(1), v)
        return v, q

    def success(self, policy: Floats) -> float:
        """Chance to win from the start; exact."""
        return float(self.values(policy)[0][0] / (REWARD * self.gamma ** (self.layers - 1)))

    def play(self, policy: Floats, episodes: int, rng: np.random.Generator) -> tuple[Ints, Ints, Floats]:
        """States [episodes, steps], actions [episodes, steps], final rewards [episodes]."""
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
    """Corridors end in hubs by chance, as HUBS says; the same seed gives the same maze."""
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
    """How an episode of the maze looks to an estimator."""

    history: int = 0
    """A state's key names the states passed just before it, so many of them."""
    corridor: int = 0
    """Steps behind each one in which nothing is decided; who took the same action in the same state shares them."""

    def group(self, states: Ints, actions: Ints, rewards: Floats) -> list[list[CreditStep]]:
        """The episodes as estimators take them: [K][steps * (1 + corridor)]; the reward comes last."""
        return [self._episode(*row) for row in zip(states.tolist(), actions.tolist(), rewards.tolist(), strict=True)]

    def decided(self, credit: list[list[float]]) -> Floats:
        """Of such credit that of the maze's own steps, [K, steps]."""
        return np.array(credit)[:, ::self.corridor + 1]

    def _episode(self, states: list[int], actions: list[int], reward: float) -> list[CreditStep]:
        keys = []
        for t, action in enumerate(actions):
            key = "-".join(map(str, states[max(0, t - self.history):t + 1]))
            keys += [key, *(f"{key}/{action}/{j}" for j in range(self.corridor))]
        return [CreditStep(state=key, reward=0.0) for key in keys[:-1]] + [CreditStep(state=keys[-1], reward=reward)]


def softmax(logits: Floats) -> Floats:
    """[states, actions] to probabilities."""
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def score_gradient(policy: Floats, states: Ints, actions: Ints, advantages: Floats) -> Floats:
    """Σ A ∇log π over all steps, by the logits [states, actions]."""
    gradient = np.zeros_like(policy)
    np.add.at(gradient, (states, actions), advantages)
    return gradient - policy * gradient.sum(1, keepdims=True)
