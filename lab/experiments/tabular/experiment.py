"""`python -m lab.experiments tabular`: all estimators in mazes with known values and many singleton states.

Credit: the estimators' advantages at one half-trained policy, compared with the exact A = Q - V.
    bias             root mean square over (state, action), weighted by visits, of mean(Â) - A, minus its mean over the
                     actions of each state, because a shared offset moves no policy. In units of reward, as is
    spread           root mean square of Â around its mean per (state, action); both for estimators in these units
    sign             share of singleton steps with credit whose sign is that of the true advantage
    cosine           between the mean of the estimated policy gradient and the true one: 1 is no bias in direction
    progress         component of one group's gradient along the true one, over its own root mean square length
Learning: a softmax policy with one group of K per step. Advantages are scaled to unit root mean square, so that all
estimators take steps of one length. The outcome is the exact probability to win after each tenth step. All arms get the
same mazes (paired). It is repeated with long corridors between decisions, and with keys that hold a history (View).

The maze is a small decision process with exactly known values: corridors that branch and meet again in a few hubs.
States are in layers, and every action leads to the next layer. A layer that is BRANCHING times as wide as the one
before is a tree, so few episodes share its states. A narrow layer is a set of hubs through which many episodes pass.
The hubs of the last layer win with different probabilities. So there are many singleton states just before shared
states, which is where credit is hardest. Estimators see the maze through a View, which can lengthen the corridors and
split shared states, as prompts with a history do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.experiments.pool import worker_pool
from learner.credit.registry import estimator, make_options
from learner.credit.types import CreditStep
from services.config.sections import CreditSection
from services.errors import UserError
from services.files import write_whole
from services.statistics import seed_interval

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


K = 8
SEEDS = 500
STEPS = 100
EVERY = 10
LEARNING: dict[str, tuple[View, float]] = {
    "steps of 0.1": (View(), 0.1),
    "steps of 0.3": (View(), 0.3),
    "steps of 0.1, long corridors": (View(corridor=6), 0.1),
    "steps of 0.1, long corridors, keys with history": (View(corridor=4, history=2), 0.1),
}
"""Title -> view of the maze and length of a step."""
GROUPS = 400
"""Groups per maze for the credit part."""
MAZES = 12
HALF_TRAINED = 0.25
"""Factor from the uniform policy's true advantages to the logits of a policy that can improve and tries all actions."""
ARMS: dict[str, CreditSection] = {
    "gagpo": make_options(),
    "gagpo_boot": make_options("gagpo_boot"),
    "gagpo_loo": make_options("gagpo_loo"),
    "gagpo_mc": make_options(lam=1.0),
    "gagpo_td": make_options(lam=0.0),
    "gigpo": make_options("gigpo"),
    "grpo": make_options("grpo"),
    "rloo": make_options("rloo"),
}
COLOURS = {"gagpo": "#0072B2", "gagpo_boot": "#56B4E9", "gagpo_loo": "#D55E00", "gagpo_mc": "#999999",
           "gagpo_td": "#F0E442", "gigpo": "#009E73", "grpo": "#E69F00"}
"""Colours, as in the credit experiment. RLOO is left out because its curve equals GRPO's: they differ only in scale."""
IN_UNITS_OF_REWARD = ("gagpo", "gagpo_boot", "gagpo_loo", "gagpo_mc", "gagpo_td")


def run(args: argparse.Namespace) -> int:
    """Writes tabular.json, tabular.md and tabular.png into --out and prints the tables. Returns 0."""
    file = args.out / "tabular.json"
    if args.report and not file.exists():
        raise UserError(f"{file} is not there", "run the experiment without --report")
    if args.seeds == 1:
        raise UserError("one maze says nothing about how mazes differ", "give --seeds 2 or more")
    if not args.report:
        args.out.mkdir(parents=True, exist_ok=True)
        result = measure(args.seeds or SEEDS, os.cpu_count() or 1, lambda line: print(line, file=sys.stderr))
        write_whole(file, json.dumps(result) + "\n")
    result = json.loads(file.read_text(encoding="utf-8"))
    lines = as_lines(result)
    write_whole(args.out / "tabular.md", "\n".join(["```text", *lines, "```"]) + "\n")
    draw(result, args.out / "tabular.png")
    print(json.dumps(result) if args.json else "\n".join(lines))
    return 0


def advantages(arm: str, view: View, states: Ints, actions: Ints, rewards: Floats) -> tuple[Floats, Floats]:
    """Returns the raw and the final credit of one group, each [K, steps]."""
    credit = estimator(ARMS[arm].estimator).group(view.group(states, actions, rewards), ARMS[arm])
    return view.decided(credit.raw_advantages), view.decided(credit.advantages)


@dataclass(slots=True)
class _Sums:
    """The sums of one estimator over the groups of one maze."""

    gradient: Floats
    length: float = 0.0
    right: int = 0
    signed: int = 0
    raw: list[Floats] = field(default_factory=list)

    def add(self, raw: Floats, final: Floats, gradient: Floats, truth: Floats) -> None:
        """Adds one group. `truth` [K, steps] is 0 for steps whose sign does not count."""
        credited = (np.abs(final) > 1e-9) & (np.abs(truth) > 1e-9)
        self.signed += int(credited.sum())
        self.right += int((np.sign(final[credited]) == np.sign(truth[credited])).sum())
        self.gradient += gradient
        self.length += float((gradient ** 2).sum())
        self.raw.append(raw)


def credit_figures(arms: Sequence[str], seed: int) -> dict[str, dict[str, float]]:
    """Returns the credit measures in one maze, by arm."""
    maze, rng = make_maze(seed, ARMS["gagpo"].gamma), np.random.default_rng([seed, 1])
    uniform = np.full((len(maze.win), maze.successor.shape[1]), 1 / maze.successor.shape[1])
    v, q = maze.values(uniform)
    policy = softmax(HALF_TRAINED * (q - v[:, None]))
    v, q = maze.values(policy)
    truth, exact = q - v[:, None], np.zeros_like(policy)
    sums = {arm: _Sums(np.zeros_like(policy)) for arm in arms}
    visits: list[Ints] = []
    for _ in range(GROUPS):
        states, actions, rewards = maze.play(policy, K, rng)
        exact += score_gradient(policy, states, actions, truth[states, actions])
        alone = np.bincount(states.ravel(), minlength=len(v))[states] == 1
        visits.append(states * policy.shape[1] + actions)
        for arm in arms:
            raw, final = advantages(arm, View(), states, actions, rewards)
            sums[arm].add(raw, final, score_gradient(policy, states, actions, final), truth[states, actions] * alone)
    pairs = np.concatenate([x.ravel() for x in visits])
    return {arm: _figures(arm, sums[arm], exact, pairs, truth) for arm in arms}


def _figures(arm: str, sums: _Sums, exact: Floats, pairs: Ints, truth: Floats) -> dict[str, float]:
    along = float((sums.gradient * exact).sum() / np.linalg.norm(exact))
    figures = {
        **({"sign": sums.right / sums.signed} if sums.signed else {}),
        "cosine": along / float(np.linalg.norm(sums.gradient)),
        "progress": along / GROUPS / float(np.sqrt(sums.length / GROUPS)),
    }
    if arm in IN_UNITS_OF_REWARD:
        figures |= _bias_and_spread(np.concatenate([x.ravel() for x in sums.raw]), pairs, truth)
    return figures


def _bias_and_spread(raw: Floats, pairs: Ints, truth: Floats) -> dict[str, float]:
    """Returns bias and spread. `pairs` [N]: state * actions + action of each `raw` [N]; `truth`: [states, actions]."""
    visits = np.bincount(pairs, minlength=truth.size).reshape(truth.shape)
    seen = (visits > 1).all(axis=1)  # states with at least two visits to every action, so that each has a variance
    n = visits[seen]
    mean, square = (np.bincount(pairs, x, minlength=truth.size).reshape(truth.shape)[seen] / n for x in (raw, raw ** 2))
    variance = (square - mean ** 2) * n / (n - 1)
    gap, weight = mean - truth[seen], n / n.sum(axis=1, keepdims=True)
    gap = gap - (weight * gap).sum(axis=1, keepdims=True)
    # The mean of a few draws differs from the truth by chance, which is not bias.
    chance = variance / n * (1 - weight) ** 2 + ((weight ** 2 * variance / n).sum(1, keepdims=True)
                                                 - weight ** 2 * variance / n)
    return {"bias": float(np.sqrt(max(np.average(gap ** 2 - chance, weights=n), 0.0))),
            "spread": float(np.sqrt(np.average(variance, weights=n)))}


def learning_curve(arm: str, view: View, step_size: float, seed: int) -> list[float]:
    """Returns the exact probability to win at steps 0, EVERY, 2 EVERY, ..., STEPS."""
    maze, rng = make_maze(seed, ARMS["gagpo"].gamma), np.random.default_rng([seed, 2])
    logits, curve = np.zeros((len(maze.win), maze.successor.shape[1])), []
    for step in range(STEPS + 1):
        policy = softmax(logits)
        if step % EVERY == 0:
            curve.append(maze.success(policy))
        states, actions, rewards = maze.play(policy, K, rng)
        final = advantages(arm, view, states, actions, rewards)[1]
        size = float(np.sqrt((final ** 2).mean()))
        if size > 0:
            logits = logits + step_size * score_gradient(policy, states, actions, final / size)
    return curve


def measure(seeds: int, workers: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Returns all results: {"credit": arm -> measure -> value, "learning": title -> arm -> curve and area, ...}."""
    with worker_pool(workers) as pool:
        report(f"credit: {len(ARMS)} estimators, {MAZES} mazes of {GROUPS} groups")
        found = list(pool.map(partial(credit_figures, tuple(ARMS)), range(MAZES)))
        credit = {arm: {name: fmean(maze[arm][name] for maze in found if name in maze[arm]) for name in found[0][arm]}
                  for arm in ARMS}
        learning: dict[str, Any] = {}
        for title, (view, size) in LEARNING.items():
            curves: dict[str, Floats] = {}
            for arm in ARMS:
                report(f"learning: {arm}, {title}, {seeds} mazes")
                made = pool.map(partial(learning_curve, arm, view, size), range(seeds), chunksize=8)
                curves[arm] = np.array(list(made))
            learning[title] = {arm: _learning(curve, curves["gagpo"]) for arm, curve in curves.items()}
    return {"format": 1, "k": K, "seeds": seeds, "mazes": MAZES, "groups": GROUPS, "every": EVERY, "credit": credit,
            "learning": learning}


def _learning(curves: Floats, plain: Floats) -> dict[str, Any]:
    """Returns the mean curve, its area and end with 95% intervals, and the area's paired difference to plain GAGPO."""
    area = curves.mean(1)
    return {"curve": curves.mean(0).tolist(), "area": seed_interval(area.tolist()),
            "end": seed_interval(curves[:, -1].tolist()),
            "over_gagpo": seed_interval((area - plain.mean(1)).tolist())}


def as_lines(result: dict[str, Any]) -> list[str]:
    """Returns the two tables."""
    lines = [f"Credit against the truth, K = {result['k']}, {result['mazes']} mazes of {result['groups']} groups:",
             f"  {'':12}{'bias':>8}{'spread':>8}{'sign':>8}{'cosine':>8}{'progress':>10}"]
    for arm, figures in result["credit"].items():
        cells = [f"{figures[name]:8.2f}" if name in figures else f"{'':8}" for name in ("bias", "spread")]
        cells.append(f"{figures['sign']:8.1%}" if "sign" in figures else f"{'':8}")
        lines.append(f"  {arm:12}{''.join(cells)}{figures['cosine']:8.3f}{figures['progress']:10.4f}")
    for title, arms in result["learning"].items():
        lines += [f"Learning, {title}, {result['seeds']} mazes, mean and 95% interval:",
                  f"  {'':12}{'area under the curve':>24}{'at the end':>24}{'area over gagpo':>28}"]
        for arm, row in arms.items():
            area, end, over = (row[name] for name in ("area", "end", "over_gagpo"))
            lines.append(f"  {arm:12}{_interval(area):>24}{_interval(end):>24}{_interval(over, '+'):>28}")
    return lines


def _interval(figures: Sequence[float], sign: str = "") -> str:
    mean, low, high = figures
    return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws the mean learning curves, one subplot per setting."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(result["learning"]), figsize=(5 * len(result["learning"]), 4), sharey=True)
    for ax, (title, arms) in zip(axes, result["learning"].items(), strict=True):
        for arm, colour in COLOURS.items():
            curve = arms[arm]["curve"]
            ax.plot([result["every"] * i for i in range(len(curve))], curve, color=colour, label=arm)
        ax.set_title(f"Chance to win, {title}", fontsize=9)
        ax.set_xlabel("groups of 8 episodes")
        ax.grid(alpha=0.3)
    axes[0].legend(loc="best", fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
