"""`python -m lab.experiments gradient`: how near the learner step of each estimator is to the gradient of success.

All estimators get the same episodes of one policy. Without `--runs` the policies are the starts of the log-linear
experiment, and the warm one after some learner steps. With it, it is the policy that the runs began with, in the groups
of their first learner steps. README.md has the plan and the results; alignment.py explains the
numbers.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from deploy.runs.policies import check_distinct
from lab.experiments.credit.design import chosen
from lab.experiments.gradient.alignment import Gradients, PolicyGradients, success_credit, tables_of
from lab.experiments.loglinear.experiment import (
    GROUPS,
    RATE,
    STARTS,
    K,
    chosen_arms,
    credits_of,
    learn,
    play_task,
    training_tasks,
)
from lab.experiments.loglinear.policy import DIMENSIONS, WITH_MEMORY, Floats, Play, score_entries
from services.errors import UserError
from services.files import write_whole
from services.seeds import seed_for

TASKS = 500
"""Groups of each log-linear policy, each of another game."""
LEARNERS, STEPS_LATER, SEED = ("gagpo", "gigpo"), (4, 12), 6000
"""The arms and the learner steps after which the log-linear policy is measured again, and the seed of those runs."""
LONGEST_NAME = 200
"""Bytes of the joined names of runs that name a table. More are counted."""
TRANSFORMER_ARMS = "gagpo,gigpo,gagpo-mc,gagpo-adm,gagpo_loo-adm,gagpo_graph-adm"
"""The arms without `--arms`. Each takes a backward pass over all groups."""


def run(args: argparse.Namespace) -> int:
    """Prints and writes the tables. Raises UserError for runs that cannot be measured together (first_steps.py), and
    for an option that the other kind of policy has.
    """
    if args.runs and args.seeds:
        raise UserError(f"--seeds {args.seeds} does nothing with --runs", "leave it out: all groups of the runs count")
    if args.overrides and not args.runs:
        raise UserError(f"{args.overrides[0]} does nothing without --runs", "leave it out, or give --runs")
    if args.runs:
        check_distinct(args.runs)
        from lab.experiments.gradient.first_steps import gradients_of_runs

        name, policies = _name(args.runs), [gradients_of_runs(
            args.runs, chosen(args.arms or TRANSFORMER_ARMS), args.overrides)]
    else:
        name, policies = "loglinear", _loglinear(chosen_arms(args.arms), args.seeds or TASKS)
    lines = [line for policy in policies for line in tables_of(policy)]
    args.out.mkdir(parents=True, exist_ok=True)
    write_whole(args.out / f"{name}.md", "\n".join(["```text", *lines, "```"]) + "\n")
    print("\n".join(lines))
    return 0


def _name(runs: Sequence[Path]) -> str:
    """Returns the name of the table, which a file can have: most file systems take 255 bytes."""
    joined = "-".join(run.name for run in runs)
    return joined if len(joined.encode()) <= LONGEST_NAME else f"{runs[0].name}-and-{len(runs) - 1}-more"


def _policies() -> Iterator[tuple[str, Floats]]:
    """Yields the log-linear policies that are measured: each start, and the warm one after steps of two arms."""
    for start, begins in STARTS.items():
        yield f"{start} start", begins.theta()
    for arm in LEARNERS:
        path = learn(arm, SEED, STARTS["warm"], RATE)
        for step, (_, theta) in enumerate(path, 1):
            if step in STEPS_LATER:
                yield f"after {step} steps of {arm}", theta
            if step == max(STEPS_LATER):
                break


def _loglinear(arms: Sequence[str], count: int) -> Iterator[PolicyGradients]:
    """Yields the gradients at each policy, from `count` groups on the same tasks. GAGPO's arm is the first."""
    arms, tasks = sorted(arms, key=lambda arm: arm != "gagpo"), training_tasks()
    tasks = random.Random(seed_for("gradient", "tasks")).sample(tasks, min(count, len(tasks)))
    for policy, theta in _policies():
        seed = seed_for("gradient", policy)
        groups = [[play_task(task, theta, WITH_MEMORY, seed=seed, k=k) for k in range(K)] for task in tasks]
        won = fmean(one.won for group in groups for one in group)
        *own, success = np.stack([_gradients(group, arms) for group in groups], axis=1)
        yield PolicyGradients(policy=f"{policy}, {won:.0%} won", per_step=GROUPS,
                              arms=dict(zip(arms, own, strict=True)), success=success)


def _gradients(group: Sequence[Play], arms: Sequence[str]) -> Gradients:
    """Returns the gradients of all arms and of success, summed over the group's turns, [arms + 1, DIMENSIONS]."""
    success = success_credit([one.won for one in group], [len(one.turns) for one in group])
    weight, value, turn = score_entries([turn for one in group for turn in one.turns])
    advantages = [*(credits_of(arm, [group])[0].advantages for arm in arms), success]
    credits = [np.concatenate(one) for one in advantages]
    return np.stack([np.bincount(weight, value * credit[turn], DIMENSIONS) for credit in credits]).astype(np.float32)
