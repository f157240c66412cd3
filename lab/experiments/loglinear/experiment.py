"""`python -m lab.experiments loglinear` and `graph-credit`: estimators and state keys with a log-linear policy, seconds
per run.

The plans, with their primary outcomes and contrasts, are in README.md and in ../graph-credit/README.md. All arms of a
seed get the same tasks and random numbers. Each run is one line of <out>/runs.jsonl and is never made again.

The policy learns from the credit of a learner step in one of two ways:

    once           g = mean over all turns of A ∇ log π                     one step of Adam
    minibatches    g = mean over a minibatch of A r ∇ log π, r = π / π_old, a step each; 0 beyond PPO's clip
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from deploy.report.tables import half_width
from deploy.training.start import saying_how_to_continue
from envservice.base import Environment
from envservice.registry import open_environment
from lab.experiments.contrasts import shown_p, tested
from lab.experiments.loglinear.policy import (
    DIMENSIONS,
    WITH_MEMORY,
    Decision,
    Floats,
    Play,
    Rules,
    demonstrate,
    inadmissible_features,
    play,
    probabilities,
    score_gradient,
)
from lab.experiments.pool import worker_pool
from learner.credit.estimator import Estimator
from learner.credit.registry import estimator, make_options
from learner.credit.types import Credit, CreditStep
from services.config.env import EnvSection
from services.config.sections import CreditSection
from services.errors import UserError
from services.files import write_whole
from services.seeds import seed_for
from services.statistics import seed_interval

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


FORMAT = 1
RATE = 0.08
"""The learning rate of the primary outcome."""
CONTRASTS = (("gagpo", "gigpo"), ("loo+adm", "gagpo"), ("loo+adm", "gigpo"), ("graph+adm", "gigpo"),
             ("loo+stay", "loo+adm"), ("graph+stay", "graph+adm"), ("gagpo+adm", "gagpo"), ("gigpo+adm", "gigpo"))
"""Pairs (a, b) for the contrasts a - b, paired by seed. Holm's correction covers all, per start and outcome."""
GRAPH_CONTRASTS = (
    ("crbc+adm", "gagpo"), ("graphhca+adm", "gagpo"), ("graft+adm", "gagpo"), ("loo-episode+adm", "gagpo"),
    ("crbc+adm", "gigpo"), ("loo-episode+adm", "gigpo"), ("loo-episode+adm", "loo+adm"),
    ("loo-episode+adm", "crbc+adm"), ("crbc+adm", "crbc-step+adm"), ("graft-group+adm", "graft+adm"),
    ("gagpo-state", "gagpo"), ("loo-state+adm", "loo+adm"), ("loo-episode+adm", "loo-episode"), ("crbc+adm", "crbc"))
"""The same of the second plan, ../graph-credit/README.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoglinearRun:
    """One finished run: success of the training episodes at each step, and on the held-out games at the end."""

    arm: str
    seed: int
    start: str
    rate: float
    success: list[float]
    heldout: float
    unchanged: float
    """Share of turns in the last five steps whose action changed nothing."""
    games: str
    seconds: float
    format: int = FORMAT

    @property
    def area(self) -> float:
        """Returns the mean success over all training steps."""
        return fmean(self.success)


def read_runs(file: Path) -> list[LoglinearRun]:
    """Returns the finished runs, each once, or [] without a file. Raises UserError for a line that is not a run."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        found = [LoglinearRun(**json.loads(line)) for line in lines]
    except (json.JSONDecodeError, TypeError) as error:
        raise UserError(f"{file} has a line that is not a run ({error})", "delete that line") from None
    return list({(one.arm, one.seed, one.start, one.rate): one for one in found}.values())


def averaged(runs: Sequence[LoglinearRun]) -> list[LoglinearRun]:
    """Returns the mean of the three starts for each arm and seed that has all of them, as one run."""
    found: dict[tuple[str, int], list[LoglinearRun]] = {}
    for one in runs:
        if one.rate == RATE and one.start in STARTS:
            found.setdefault((one.arm, one.seed), []).append(one)
    return [replace(some[0], start=MEAN, heldout=fmean(one.heldout for one in some),
                    success=[fmean(step) for step in zip(*(one.success for one in some), strict=True)],
                    unchanged=fmean(one.unchanged for one in some), seconds=sum(one.seconds for one in some))
            for some in found.values() if len(some) == len(STARTS)]


def as_lines(runs: Sequence[LoglinearRun], plan: LoglinearPlan | None = None) -> list[str]:
    """Returns the tables of a plan (None: the first one): means by arm, then the contrasts with Holm's correction."""
    plan, lines = plan or PLANS["loglinear"], list[str]()
    runs = [*averaged(runs), *runs] if plan.averages else runs
    for start, rate in sorted({(one.start, one.rate) for one in runs}, key=lambda x: (x[1] != RATE, x[0] != MEAN, x)):
        mine = [one for one in runs if (one.start, one.rate) == (start, rate)]
        where = start if start == MEAN else f"{start} start"
        lines += [f"{where}, learning rate {rate:g}, {mine[0].games} games; success in %, mean and 95% interval",
                  f"  {'arm':18}{'seeds':>6}{'training area':>18}{'held-out':>18}{'changed nothing':>17}"]
        for arm in dict.fromkeys(one.arm for one in sorted(runs, key=lambda one: one.seed)):
            its = [one for one in mine if one.arm == arm]
            if its:
                lines.append(f"  {arm:18}{len(its):>6}{_points([x.area for x in its]):>18}"
                             f"{_points([x.heldout for x in its]):>18}{fmean(x.unchanged for x in its):>17.1%}")
        lines += _contrasts(mine, plan.contrasts)
    return lines


def _contrasts(mine: Sequence[LoglinearRun], planned: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"  {'paired difference':32}{'pairs':>6}{'training area':>26}{'held-out':>26}"]
    value = {(one.arm, one.seed): one for one in mine}
    pairs = {f"{a} - {b}": [(value[a, seed], value[b, seed]) for arm, seed in value if arm == a and (b, seed) in value]
             for a, b in planned}
    areas, games = (tested({name: [100 * (of(x) - of(y)) for x, y in both] for name, both in pairs.items()})
                    for of in (lambda one: one.area, lambda one: one.heldout))
    for area, heldout in zip(areas, games, strict=True):
        cells = [f"{one.mean:+.1f}{half_width(one.mean, one.high, '.1f')} {_p(one.corrected)}"
                 for one in (area, heldout)]
        lines.append(f"  {area.name:32}{area.pairs:>6}{cells[0]:>26}{cells[1]:>26}")
    return [*lines, "  p: Student's t over seeds, Holm's correction over the planned contrasts of this block", ""]


def _p(value: float) -> str:
    shown = shown_p(value)
    return f"p{shown}" if shown.startswith("<") else f"p={shown}"


def _points(values: Sequence[float]) -> str:
    mean, _, high = seed_interval(values)
    return f"{100 * mean:.1f}{half_width(100 * mean, 100 * high, '.1f')}"


SEEDS = 60
FIRST_SEED, FIRST_GRAPH_SEED = 1000, 3000
"""The first seed of each plan. No pilot used this or a later one."""
MEAN = "mean of the starts"
STEPS, GROUPS, K = 30, 8, 8
HELDOUT = 128
OTHER_RATES = (0.03, 0.2)
CLONED_GAMES, CLONE_UPDATES, CLONE_ROWS = 150, 60, 400


@dataclass(frozen=True, slots=True)
class Start:
    """The weights that a run begins with: cloned ones times a factor, and a preference for inadmissible actions. An
    ablation changes the policy or its update, too."""

    factor: float
    preference: float = 0.0
    rules: Rules = WITH_MEMORY
    minibatch: int | None = None
    """Turns of each of PPO's minibatches; None: one update a learner step."""
    rate: float = RATE
    """Learning rate of the first runs."""

    def theta(self) -> Floats:
        """Returns the weights, [DIMENSIONS]."""
        theta = self.factor * cloned(self.rules)
        theta[inadmissible_features()] += self.preference
        return theta


STARTS = {"warm": Start(0.15), "blind": Start(0.10), "clumsy": Start(0.20, preference=4.0)}
"""`warm` wins about a quarter of the held-out games, `blind` 5 to 15%. `clumsy` wins about a fifth, and half of its
turns change nothing, as those of a small language model do."""
ABLATIONS = {
    "minibatches": Start(0.15, minibatch=128, rate=0.03),
    "slips": Start(0.18, rules=Rules(slips=True)),
    "memoryless": Start(0.18, rules=Rules(memory=False)),
    "memoryless-slips": Start(0.40, rules=Rules(memory=False, slips=True)),
}
"""Starts whose policy or update is more like the transformer's. Each wins about a quarter of the training games."""
ABLATED_ARMS = ("gigpo", "gagpo", "gagpo-mc", "loo+adm")


@dataclass(frozen=True, slots=True)
class LoglinearArm:
    """An estimator with its options, and a state key."""

    estimator: str
    key: str
    options: Mapping[str, float | bool | str] = field(default_factory=dict[str, "float | bool | str"])

    def make(self) -> tuple[Estimator, CreditSection]:
        """Returns the estimator and its options."""
        return estimator(self.estimator), make_options(self.estimator, penalty=0.0, **self.options)


MONTE_CARLO = {"lam": 1.0}
ARMS: dict[str, LoglinearArm] = {
    "grpo": LoglinearArm("grpo", "observation"),
    "gigpo": LoglinearArm("gigpo", "observation"),
    "gigpo+adm": LoglinearArm("gigpo", "admissible"),
    "gagpo": LoglinearArm("gagpo", "observation"),
    "gagpo-mc": LoglinearArm("gagpo", "observation", MONTE_CARLO),
    "gagpo+adm": LoglinearArm("gagpo", "admissible"),
    "gagpo-mc+adm": LoglinearArm("gagpo", "admissible", MONTE_CARLO),
    "gagpo+stay": LoglinearArm("gagpo", "stay"),
    "loo": LoglinearArm("gagpo_loo", "observation"),
    "loo+adm": LoglinearArm("gagpo_loo", "admissible"),
    "loo+stay": LoglinearArm("gagpo_loo", "stay"),
    "graph+adm": LoglinearArm("gagpo_graph", "admissible"),
    "graph+stay": LoglinearArm("gagpo_graph", "stay"),
    "graph-group+adm": LoglinearArm("gagpo_graph", "admissible", {"leave_out": False}),
}
"""Arms with their state keys: `observation` is the paper's; `admissible` adds the admissible actions; `stay` is
`admissible`, but an action that changes nothing leads back to the same state."""


EPISODE, STATE = {"broadcast": 1.0}, {"normalize": "state"}
GRAPH_ARMS: dict[str, LoglinearArm] = {
    f"{name}{suffix}": LoglinearArm(estimator, key, options)
    for name, estimator, options in (
        ("gagpo-state", "gagpo", STATE), ("loo-state", "gagpo_loo", STATE), ("loo-episode", "gagpo_loo", EPISODE),
        ("loo-episode-state", "gagpo_loo", EPISODE | STATE), ("graft", "graft", {}),
        ("graft-group", "graft", {"normalize": "group"}), ("crbc", "crbc", {}),
        ("crbc-step", "crbc", {"broadcast": 0.0}), ("graphhca", "graphhca", {}))
    for suffix, key in (("", "observation"), ("+adm", "admissible"))}
"""Further arms of the second plan."""
ALL_ARMS = ARMS | GRAPH_ARMS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoglinearPlan:
    """A planned experiment. Its arms are tried from each of STARTS."""

    arms: Sequence[str]
    contrasts: Sequence[tuple[str, str]]
    first_seed: int
    further: bool = False
    """Whether ablations and other learning rates come after the primary runs."""
    averages: bool = False
    """Whether its outcomes are means over the starts."""


PLANS = {
    "loglinear": LoglinearPlan(arms=tuple(ARMS), contrasts=CONTRASTS, first_seed=FIRST_SEED, further=True),
    "graph-credit": LoglinearPlan(
        arms=("grpo", "gigpo", "gigpo+adm", "gagpo", "gagpo+adm", "loo", "loo+adm", *GRAPH_ARMS),
        contrasts=GRAPH_CONTRASTS, first_seed=FIRST_GRAPH_SEED, averages=True)}
"""Name of the experiment -> its plan."""


def run(args: argparse.Namespace) -> int:
    """Makes the runs that are missing, then prints and writes the table."""
    plan = PLANS[args.name]
    file = args.out / "runs.jsonl"
    if args.report and not file.exists():
        raise UserError(f"{file} is not there", "run the experiment without --report")
    wanted = list(planned(args.arms, args.seeds or SEEDS, plan))
    if not args.report:
        args.out.mkdir(parents=True, exist_ok=True)
        _make(file, wanted, args.parallel, 3600 * args.hours if args.hours else float("inf"))
    runs = read_runs(file)
    lines = as_lines(runs, plan)
    write_whole(args.out / "table.md", "\n".join(["```text", *lines, "```"]) + "\n")
    print(json.dumps([asdict(one) for one in runs]) if args.json else "\n".join(lines))
    return 0


def planned(arms: str | None, seeds: int, plan: LoglinearPlan | None = None) -> Iterator[tuple[str, int, str, float]]:
    """Yields (arm, seed, start, rate), balanced by seed: the primary rate, then, if the plan has them, the ablations
    and the other rates. `plan`: None is the first one.

    Raises UserError for an unknown arm.
    """
    plan = plan or PLANS["loglinear"]
    chosen, numbers = chosen_arms(arms, plan.arms), range(plan.first_seed, plan.first_seed + seeds)
    ablated = [arm for arm in ABLATED_ARMS if arm in chosen]
    for seed, start, arm in product(numbers, STARTS, chosen):
        yield arm, seed, start, RATE
    if not plan.further:
        return
    for seed, start, arm in product(numbers, ABLATIONS, ablated):
        yield arm, seed, start, ABLATIONS[start].rate
    for rate, seed, start, arm in product(OTHER_RATES, numbers, STARTS, chosen):
        yield arm, seed, start, rate


def chosen_arms(names: str | None, default: Sequence[str] = tuple(ARMS)) -> list[str]:
    """Parses a comma-separated list of arms; None: the default ones. Raises UserError for an unknown arm."""
    chosen = list(default) if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in ALL_ARMS]:
        raise UserError(f"there is no arm {unknown[0]!r}", f"choose among {', '.join(ALL_ARMS)}")
    return chosen


def _make(file: Path, wanted: Sequence[tuple[str, int, str, float]], parallel: int, budget_s: float) -> None:
    """Makes the runs without a line in `file`, for at most `budget_s` seconds. Raises UserError for other games."""
    known, games = read_runs(file), _environment().name
    if other := {one.games for one in known} - {games}:
        raise UserError(f"{file} was made on the games {other.pop()}, and now they are {games}",
                        "set ALFWORLD_DATA as it was, or give another --out")
    done = {(one.arm, one.seed, one.start, one.rate) for one in known}
    missing = [one for one in wanted if one not in done]
    began = time.monotonic()
    print(f"{len(missing)} of {len(wanted)} runs to make, {parallel} at once", file=sys.stderr)
    with (saying_how_to_continue("the same command"), worker_pool(parallel) as pool,
          file.open("a", encoding="utf-8") as out):
        for first in range(0, len(missing), 4 * parallel):
            if time.monotonic() - began > budget_s:
                print(f"the time is over: {len(missing) - first} runs are left for the next time", file=sys.stderr)
                return
            batch = [pool.submit(train, *one) for one in missing[first:first + 4 * parallel]]
            for finished in as_completed(batch):
                out.write(json.dumps(asdict(finished.result())) + "\n")
                out.flush()  # one write for each line, so a killed process leaves no part of one


@cache
def _environment() -> Environment:
    return open_environment(EnvSection())


@cache
def cloned(rules: Rules) -> Floats:
    """Returns weights [DIMENSIONS] cloned from the scripted searcher, the same in every process."""
    environment = _environment()
    rng = random.Random(seed_for("loglinear", "clone"))
    tasks = rng.sample(training_tasks(), CLONED_GAMES)
    turns = [turn for task in tasks
             for turn in demonstrate(environment.open(task), random.Random(seed_for("clone", task)), rules)]
    adam = Adam(0.2, betas=(0.9, 0.99))
    for _ in range(CLONE_UPDATES):
        gradient = np.zeros(DIMENSIONS)
        for turn in rng.sample(turns, CLONE_ROWS):
            turn.probabilities = probabilities(adam.theta, turn.features)
            score_gradient(turn, 1 / CLONE_ROWS, gradient)
        adam.step(gradient)
    return adam.theta


def train(arm: str, seed: int, start: str, rate: float) -> LoglinearRun:
    """Makes one run."""
    began, environment = time.monotonic(), _environment()
    success: list[float] = []
    unchanged: list[bool] = []
    begins = (STARTS | ABLATIONS)[start]
    theta = begins.theta()
    for step, (groups, after) in enumerate(learn(arm, seed, begins, rate)):
        theta = after
        success.append(fmean(one.won for group in groups for one in group))
        unchanged += [not turn.changed for group in groups for one in group for turn in one.turns
                      if step >= STEPS - 5]
    heldout = environment.tasks(environment.training_splits()[2])
    tested = random.Random(seed_for(seed, "heldout")).sample(heldout, min(HELDOUT, len(heldout)))
    won = fmean(play_task(task, theta, begins.rules, seed=seed, step=STEPS).won for task in tested)
    return LoglinearRun(arm=arm, seed=seed, start=start, rate=rate, success=success, heldout=won,
                        unchanged=fmean(unchanged), games=environment.name, seconds=time.monotonic() - began)


def learn(arm: str, seed: int, begins: Start, rate: float) -> Iterator[tuple[list[list[Play]], Floats]]:
    """Yields for each of STEPS learner steps its groups and the weights after it, [DIMENSIONS]."""
    adam, training = Adam(rate, theta=begins.theta()), training_tasks()
    for step in range(STEPS):
        tasks = random.Random(seed_for(seed, "tasks", step)).sample(training, GROUPS)
        groups = [[play_task(task, adam.theta, begins.rules, seed=seed, step=step, k=k) for k in range(K)]
                  for task in tasks]
        turns = list(credited(groups, credits_of(arm, groups)))
        if begins.minibatch is None:
            adam.step(gradient_of(turns))
        else:
            rng = random.Random(seed_for(seed, "minibatches", step))
            minibatch_steps(adam, turns, rows=begins.minibatch, rng=rng)
        yield groups, adam.theta


def credits_of(arm: str, groups: Sequence[Sequence[Play]]) -> list[Credit]:
    """Returns the credit of the groups of one learner step."""
    chosen, options = ALL_ARMS[arm].make()
    return chosen.batch([chosen.group(credit_steps(group, ALL_ARMS[arm].key), options) for group in groups], options)


def training_tasks() -> Sequence[str]:
    """Returns the training games, as runs cut them."""
    environment = _environment()
    return environment.tasks(environment.training_splits()[0])


def play_task(task: str, theta: Floats, rules: Rules, *, seed: int, step: int = 0, k: int = 0) -> Play:
    """Plays member k of a group; the random numbers depend on all but the policy."""
    return play(_environment().open(task), theta, random.Random(seed_for(seed, task, step, k)), rules)


def credit_steps(group: Sequence[Play], key: str) -> list[list[CreditStep]]:
    """Returns the group as estimators see it; the reward is 1 at the last turn of an episode that was won."""
    return [[CreditStep(state=state, reward=float(one.won and t == len(one.turns) - 1), action=one.turns[t].action)
             for t, state in enumerate(_keys(one, key))] for one in group]


def _keys(one: Play, key: str) -> Iterator[str]:
    state = ""
    for t, turn in enumerate(one.turns):
        if not (key == "stay" and t and not one.turns[t - 1].changed):
            state = turn.observation if key == "observation" else "\n".join([turn.observation, *turn.admissible])
        yield state
