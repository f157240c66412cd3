"""Fits a config to this machine: `hardware=cpu`, one GPU for the rollout workers, an evaluation without a learner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from deploy.launch.planning import gpu_pool, machine
from deploy.launch.planning.gpu_plan import gpus_needed
from deploy.launch.planning.model_memory import check_cache
from deploy.launch.planning.plan import halves, make_plan, uses_private_ray
from services.amounts import GIB
from services.config.file import as_yaml, flatten
from services.config.tree import CPU, Config
from services.errors import UserError
from services.process.packages import installed

SMALL_CACHE_GB = 0.5
"""Smallest KV cache in GB that hardware=cpu sets."""


def on_cpu(config: Config, report: Callable[[str], object], *, learner: bool = True) -> Config:
    """Returns the config without GPUs if it sets `hardware=cpu`: one learner rank, no more rollout workers than this
    machine has CPUs for, and a KV cache and passes that its memory holds. No key that decides what is learned changes.

    `report` takes a line with the keys that changed. `learner`: whether there will be one, as in make_plan. CPUs and
    memory of a Ray cluster are not looked at: only its scheduler knows them.
    """
    if config.hardware != CPU:
        return config
    fitted = largest = _without_gpus(config)
    if uses_private_ray(config):
        with suppress(UserError, OSError):  # the checks say what is wrong with the model
            for fitted in _smaller(largest):  # if none fits, the smallest is left for the checks to refuse
                if _memory_fits(fitted, learner=learner):
                    break
    before, after = flatten(config), flatten(fitted)
    changed = [f"{key}={as_yaml(value)}" for key, value in after.items() if value != before[key]]
    if changed:
        report(f"hardware=cpu sets {', '.join(changed)}")
    return fitted


def _without_gpus(config: Config) -> Config:
    rollout, learner = config.rollout, config.learner
    keys: dict[str, Any] = {
        "rollout.gpus": 0.0, "rollout.tensor_parallel": 1, "rollout.gpu_memory": None, "rollout.sleep": False,
        "learner.gpus": 0.0, "learner.ranks": 1, "learner.fewest_ranks": None, "learner.offload": False,
        "autoscale.rollout": None}
    if config.weights.transfer != "auto":
        keys["weights.transfer"] = "host"
    if uses_private_ray(config):
        cpus = machine.cpu_count()
        room = int((cpus - learner.cpus) / rollout.cpus) if rollout.cpus else rollout.workers
        keys |= {"rollout.workers": max(1, min(rollout.workers, room)),
                 "rollout.threads": max(1, min(rollout.threads, int(cpus))),
                 "learner.threads": max(1, min(learner.threads, int(cpus)))}
    return config.with_keys(keys)


def _smaller(config: Config) -> Iterator[Config]:
    """Yields the config, then ever smaller ones: each has the changes of those before it."""
    yield config
    for key, values in (("rollout.kv_cache_gb", halves(config.rollout.kv_cache_gb, SMALL_CACHE_GB)),
                        ("learner.token_budget", halves(config.learner.token_budget, config.rollout.row_tokens)),
                        ("learner.checkpointing", [True])):
        for value in values:
            smaller = config.with_keys({key: value})
            try:
                check_cache(smaller)
            except UserError:
                break
            config = smaller
            yield config


def _memory_fits(config: Config, *, learner: bool) -> bool:
    return make_plan(config, learner=learner).memory_gib * GIB <= machine.available_memory()


def with_gpu(config: Config, report: Callable[[str], object]) -> Config:
    """Returns the config with one GPU for all its rollout workers if it uses none and vLLM's build for CUDA is
    installed: that build would take a GPU anyway, without a reservation. `report` takes a line about it.

    A config with rollout.exact or hardware=cpu asks for CPUs. It stays unchanged, and the checks refuse it.
    """
    rollout = config.rollout
    if (rollout.gpus or config.learner.gpus or rollout.exact or config.hardware == CPU
            or not uses_private_ray(config) or installed("vllm") is None or gpu_pool.visible() is None):
        return config
    share = math.floor(100 / rollout.workers) / 100
    report(f"rollout.gpus is 0, and vLLM's build for CUDA is installed: sampling on one GPU (rollout.gpus={share:g})")
    return config.with_keys({"rollout.gpus": share})


def evaluation_config(config: Config, report: Callable[[str], object]) -> Config:
    """Returns the config of an evaluation: no learner, no more rollout workers than there is room for, and the
    devices that on_cpu and with_gpu choose.

    `report` takes a line for each change. A worker that shares a GPU with a learner rank in training has it alone here.
    """
    return with_gpu(_without_learner(on_cpu(config, report, learner=False), report), report)


def _without_learner(config: Config, report: Callable[[str], object]) -> Config:
    asked = config.rollout.workers
    alone = config.with_keys({
        "rollout.gpus": 1.0 if config.shares_gpus else config.rollout.gpus, "rollout.sleep": False,
        "learner.ranks": 1, "learner.fewest_ranks": None, "learner.cpus": 0.0, "learner.gpus": 0.0,
        "learner.threads": 1, "weights.transfer": "host"})

    def with_workers(count: int) -> Config:
        return alone.with_keys({"rollout.workers": count, "autoscale.rollout": None})

    if not uses_private_ray(config) or asked == 1 or _machine_fits(alone):
        return alone
    count = next((count for count in range(asked - 1, 1, -1) if _machine_fits(with_workers(count))), 1)
    report(f"playing with rollout.workers={count} instead of {asked}: this machine has no room for more")
    return with_workers(count)


def _machine_fits(config: Config) -> bool:
    pool = gpu_pool.visible()
    return (make_plan(config, learner=False).cpus <= machine.cpu_count() and _memory_fits(config, learner=False)
            and gpus_needed(config) <= (pool.count if pool else 0))
