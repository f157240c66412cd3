"""Fits a config for GPUs to a machine without them: `hardware=cpu`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from deploy.launch.planning import machine
from deploy.launch.planning.model_memory import check_cache
from deploy.launch.planning.plan import make_plan, uses_private_ray
from services.config.file import as_yaml, flatten
from services.config.tree import CPU, Config
from services.errors import UserError
from services.units import GIB

SMALL_CACHE_GB = 0.5
"""KV cache in GB below which it is halved only if nothing else helps."""


def on_cpu(config: Config, tell: Callable[[str], object], *, learner: bool = True) -> Config:
    """Returns the config without GPUs if it sets `hardware=cpu`: one learner rank, as many rollout workers as this
    machine has CPUs for, and a KV cache and passes that its memory holds. Nothing changes that decides what is learned.

    `tell` takes a line with the keys that changed. `learner`: whether there will be one, as in make_plan. On a Ray
    cluster, CPUs and memory are the cluster's own business.
    """
    if config.hardware != CPU:
        return config
    fitted = largest = _without_gpus(config)
    if uses_private_ray(config):
        with suppress(UserError, OSError):  # the checks say what is wrong with the model
            for fitted in _smaller(largest):  # the smallest, if none fits: the checks refuse it
                if _fits(fitted, learner=learner):
                    break
    before, after = flatten(config), flatten(fitted)
    changed = [f"{key}={as_yaml(value)}" for key, value in after.items() if value != before[key]]
    if changed:
        tell(f"hardware=cpu sets {', '.join(changed)}")
    return fitted


def _without_gpus(config: Config) -> Config:
    rollout, learner, way, cpus = config.rollout, config.learner, config.weights.transfer, machine.cpu_count()
    if uses_private_ray(config):
        room = int((cpus - learner.cpus) / rollout.cpus) if rollout.cpus else rollout.workers
        own: dict[str, Any] = {"workers": max(1, min(rollout.workers, room)),
                               "threads": max(1, min(rollout.threads, int(cpus)))}
        threads = max(1, min(learner.threads, int(cpus)))
    else:
        own, threads = {}, learner.threads
    return config.model_copy(update={
        "rollout": rollout.model_copy(update={
            "gpus": 0.0, "tensor_parallel": 1, "gpu_memory": None, "sleep": False, **own}),
        "learner": learner.model_copy(update={
            "gpus": 0.0, "ranks": 1, "fewest_ranks": None, "offload": False, "threads": threads}),
        "weights": config.weights.model_copy(update={} if way in ("auto", "host") else {"transfer": "host"}),
        "autoscale": config.autoscale.model_copy(update={"rollout": None})})


def _smaller(config: Config) -> Iterator[Config]:
    """Yields the config, then ever smaller ones: each has the changes of those before it."""
    rollout, learner = config.rollout, config.learner
    row = rollout.max_prompt_tokens + rollout.max_response_tokens

    def made() -> Config:
        return config.model_copy(update={"rollout": rollout, "learner": learner})

    yield made()
    while rollout.kv_cache_gb / 2 >= SMALL_CACHE_GB:
        rollout = rollout.model_copy(update={"kv_cache_gb": rollout.kv_cache_gb / 2})
        if not _holds_a_row(smaller := made()):
            break
        yield smaller
        config = smaller
    rollout = config.rollout
    while learner.token_budget // 2 >= row:
        learner = learner.model_copy(update={"token_budget": learner.token_budget // 2})
        yield made()
    learner = learner.model_copy(update={"checkpointing": True})
    yield made()


def _holds_a_row(config: Config) -> bool:
    try:
        check_cache(config)
    except UserError:
        return False
    return True


def _fits(config: Config, *, learner: bool) -> bool:
    return make_plan(config, learner=learner).memory_gib * GIB <= machine.available_memory()
