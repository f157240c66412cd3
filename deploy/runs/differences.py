"""Compares the config of a run with one that is to go on with it."""

from __future__ import annotations

import re

from deploy.runs.hub import origin
from deploy.runs.moved import followed
from services.config.file import as_yaml, flatten
from services.config.tree import Config

MAY_CHANGE = re.compile(
    r"(runs_dir|shared|steps|hardware|model\.download|eval\..*|checkpoint\..*|storage\..*|redis\.(?!bodies).*|ray\..*|placement\..*|autoscale\..*"
    r"|supervision\..*|metrics\..*|weights\..*|prompting\..*|agent\.seconds"
    r"|env\.(data|servers|cpus|urls|token_file|max_sessions|memory_gb|recycle_hours|recycle_gb|call_seconds|outage_seconds)"
    r"|rollout\.(workers|slots|cpus|gpus|tensor_parallel|sleep|gpu_memory|kv_cache_gb|threads|(start|sample|retry|update)_seconds)"
    r"|learner\.(ranks|fewest_ranks|cpus|gpus|threads|checkpointing|compile|offload|token_budget|step_attempts|overdue_s|wait_s|collective_s))")
"""Keys that may differ on --resume: how far, where and how patiently a run goes, never what it learns from or how."""


def differences(before: Config, now: Config) -> list[str]:
    """Returns a text with both values for each differing key that decides what a run learns. The critic's keys decide
    nothing without one.

    An option of `learner.credit` that one config lacks is left out: it does nothing there, or belongs to another
    estimator or state key, which is named itself.
    """
    from learner.credit.registry import estimator

    theirs, mine = compared(before, now)
    if not estimator(now.learner.credit.estimator).needs_critic:
        mine = {key: value for key, value in mine.items() if not key.startswith("learner.critic.")}
    return [f"{key} is {as_yaml(theirs[key])} there and {as_yaml(mine[key])} here" for key in mine
            if key in theirs and mine[key] != theirs[key] and not MAY_CHANGE.fullmatch(key)]


def compared(before: Config, now: Config) -> tuple[dict[str, object], dict[str, object]]:
    """Returns both configs by dotted key, without a model or a teacher that is the same folder, however its path is
    written and wherever the runs were moved with it, and without a model of the hub and of one commit, wherever its
    cache is.
    """
    theirs, mine = flatten(before), flatten(now)
    for key, there, here in (("model.path", before.model.path, now.model.path),
                             ("learner.distill.teacher", before.learner.distill.teacher, now.learner.distill.teacher)):
        if there is not None and here is not None and here.absolute() in (
                there.absolute(), followed(there, before.runs_dir, now.runs_dir.absolute())):
            theirs[key] = mine[key]
    if (commit := origin(now.model.path)) and commit == origin(before.model.path):
        for keys in (theirs, mine):
            del keys["model.path"], keys["model.revision"]
    return theirs, mine
