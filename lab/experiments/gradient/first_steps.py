"""The groups of the first learner steps of runs, and the gradients that estimators make of them.

The first groups of runs from one cold start with different seeds were sampled by one policy, independently, so runs
that exist already are enough. The archive lacks the admissible actions and the state after the last turn, so with
`bootstrap` keys of these know no cut state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.launch.planning.machine import available_memory
from deploy.runs.configs import lay_over, load_config
from deploy.runs.folder import RunFolder
from deploy.runs.model_sources import with_local_model
from deploy.runs.policies import folder_digest
from deploy.runs.results import RunResults
from lab.experiments.credit.design import ARMS
from lab.experiments.gradient.alignment import Gradients, PolicyGradients, success_credit
from services.amounts import GIB
from services.config.tree import Config
from services.errors import UserError
from services.records import Episode, Step, Ticket

if TYPE_CHECKING:
    from learner.model.policy import Policy

Groups = list[list[Episode]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """The groups of the first learner step of a run, and the policy that played them."""

    run: Path
    config: Config
    policy: Path
    groups: Groups


def gradients_of_runs(runs: Sequence[Path], arms: Sequence[str], overrides: Sequence[str]) -> PolicyGradients:
    """Returns the gradients by arm at the policy that all runs began with. `overrides` are laid over their configs.

    Raises UserError for a run that trained no step, for one that began with another policy than the first, for two with
    one seed, and for an arm with a critic.
    """
    from learner.credit.registry import estimator
    from learner.model.policy import load_policy

    used = {arm: estimator(ARMS[arm].overrides["learner.credit.estimator"]) for arm in arms}
    if judged := next((arm for arm in arms if used[arm].needs_critic), None):
        raise UserError(f"the arm {judged} has a critic, whose advantages no archive holds", "leave it out of --arms")
    steps = [first_step(run, overrides) for run in runs]
    first, digest = steps[0], folder_digest(steps[0].policy)
    if other := next((step for step in steps if folder_digest(step.policy) != digest), None):
        raise UserError(f"{other.run} began with another policy than {first.run}", "give runs with one initial policy")
    seeds = [step.config.seed for step in steps]
    if twin := next((step for i, step in enumerate(steps) if step.config.seed in seeds[:i]), None):
        raise UserError(f"{twin.run} has the seed {twin.config.seed} of another run, and so the same groups",
                        "give runs with different seeds")
    policy = load_policy(first.policy)
    gradients = _room(len(arms) + 1, sum(len(step.groups) for step in steps), policy)
    for i, made in enumerate(made for step in steps for made in _gradients(step, policy, arms)):
        gradients[:, i] = made
    *own, success = gradients
    won = fmean(one.won for step in steps for group in step.groups for one in group)
    return PolicyGradients(policy=f"first policy of {', '.join(step.run.name for step in steps)}, {won:.0%} won",
                           per_step=first.config.learner.groups_per_step,
                           arms=dict(zip(arms, own, strict=True)), success=success)


def _room(arms: int, groups: int, policy: Policy) -> Gradients:
    """Returns an array [arms, groups, parameters]. Raises UserError if it is larger than the memory that is free."""
    parameters, free = sum(one.numel() for one in policy.parameters()), available_memory()
    if (size := 4 * arms * groups * parameters) > free:
        raise UserError(f"the gradients of {arms} estimators, {groups} groups and {parameters:,} parameters take "
                        f"{size / GIB:.0f} GiB, and {free / GIB:.0f} are free", "give fewer --arms, or a smaller model")
    return np.empty((arms, groups, parameters), np.float32)


def first_step(run: Path, overrides: Sequence[str] = ()) -> FirstStep:
    """Reads a run's folder. Raises UserError if it is none, or has no groups of its first learner step, or one of a
    single episode.
    """
    results = RunResults(run)
    groups = episodes_of(results.episodes(step=1).to_pylist())
    if not groups:
        raise UserError(f"{run} has no groups of a first learner step", "give a run that has trained")
    if min(map(len, groups)) < 2:
        raise UserError(f"{run} has a group of one episode, which has no other to be compared with",
                        "give runs with a learner.group_size of at least 2")
    config = with_local_model(load_config(RunFolder(results.path).config_file, overrides))
    given, made = config.model.path, RunFolder(results.path).cold_model  # a cold start may begin with model.path
    return FirstStep(run=results.path, config=config, groups=groups,
                     policy=made if config.sft.enabled or given is None else given)


def episodes_of(rows: Iterable[Mapping[str, Any]]) -> Groups:
    """Returns the groups of archive rows, turn by turn in order. What credit and gradients do not read is left out."""
    return [[_episode(list(turns)) for _, turns in groupby(members, lambda row: row["k"])]
            for _, members in groupby(rows, lambda row: row["group"])]


def _episode(rows: Sequence[Mapping[str, Any]]) -> Episode:
    first, last = rows[0], rows[-1]
    ticket = Ticket(group=first["group"], k=first["k"], size=0, task=first["task"], seed=0, kind=first["kind"],
                    temperature=first["temperature"], max_steps=0)
    return Episode(ticket=ticket, steps=[_step(row) for row in rows], won=first["won"], end=first["end"],
                   worker=first["worker"], attempt=first["attempt"], seconds=0.0, engine="",
                   final_observation=last["final_observation"] or "")


def _step(row: Mapping[str, Any]) -> Step:
    return Step(
        prompt_ids=np.array(row["prompt_ids"], np.int32), response_ids=np.array(row["tokens"], np.int32),
        logprobs=np.array(row["logprobs"], np.float32), spans=[],
        **{name: row[name] for name in ("observation", "action", "valid", "admissible", "reward", "choices", "state",
                                        "unchanged", "tag")})


def _gradients(step: FirstStep, policy: Policy, arms: Sequence[str]) -> Iterator[Gradients]:
    """Yields for each group the gradients of all arms and of success, [arms + 1, parameters]."""
    from lab.experiments.gradient.score_gradients import score_gradients
    from learner.rows.batch import assign_credit, rows_of

    credits = [assign_credit(step.groups, lay_over(step.config, ARMS[arm].overrides).learner.credit) for arm in arms]
    for i, group in enumerate(step.groups):
        rows = rows_of([group], [credits[0][i]], policy_step=0)
        lengths = rows.response_lengths if step.config.learner.loss.aggregation == "actions" else 1
        success = success_credit([one.won for one in group], [len(one.steps) for one in group])
        weights = [np.concatenate(of[i].advantages) / lengths for of in credits]
        yield score_gradients(policy, rows, [*weights, np.concatenate(success)],
                              token_budget=step.config.learner.token_budget)
