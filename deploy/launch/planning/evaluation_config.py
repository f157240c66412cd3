"""The config of an evaluation, from that of a run: no learner, and as many rollout workers as there is room for."""

from __future__ import annotations

from collections.abc import Callable

from deploy.launch.planning import gpu_pool, machine
from deploy.launch.planning.gpu_plan import gpus_needed
from deploy.launch.planning.plan import make_plan, uses_private_ray
from services.config.tree import Config
from services.units import GIB


def evaluation_config(config: Config, tell: Callable[[str], object]) -> Config:
    """Returns the config of an evaluation. `tell` takes a line if it has fewer rollout workers.

    A worker that shares a GPU with a learner rank in training has it alone here.
    """
    rollout, learner = config.rollout, config.learner
    alone = {"gpus": 1.0 if config.shares_gpus else rollout.gpus, "sleep": False}
    nothing = {"ranks": 1, "fewest_ranks": None, "cpus": 0.0, "gpus": 0.0, "threads": 1}
    played = config.model_copy(update={
        "rollout": rollout.model_copy(update=alone), "learner": learner.model_copy(update=nothing),
        "weights": config.weights.model_copy(update={"transfer": "host"})})
    return _with_room(played, tell) if uses_private_ray(config) else played


def _with_room(config: Config, tell: Callable[[str], object]) -> Config:
    asked = config.rollout.workers
    fitting = next((count for count in range(asked, 1, -1) if _fits(_with_workers(config, count))), 1)
    if fitting == asked:
        return config
    tell(f"playing with rollout.workers={fitting} instead of {asked}: this machine has no room for more")
    return _with_workers(config, fitting)


def _with_workers(config: Config, count: int) -> Config:
    return config.model_copy(update={
        "rollout": config.rollout.model_copy(update={"workers": count}),
        "autoscale": config.autoscale.model_copy(update={"rollout": None})})


def _fits(config: Config) -> bool:
    plan, pool = make_plan(config, learner=False), gpu_pool.visible()
    return (plan.cpus <= machine.cpu_count() and plan.memory_gib * GIB <= machine.available_memory()
            and gpus_needed(config) <= (pool.count if pool else 0))
