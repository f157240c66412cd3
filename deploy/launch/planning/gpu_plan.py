"""Plans the memory of each GPU of a run in GiB, and checks that it fits. Of the weights it reads only the headers.

The learner's part is learner/model/memory.py, which also says where its numbers come from. The sampler's part is its
weights, its KV cache and vLLM itself. Every process adds a CUDA context. docs/gpu-status.md has the formulas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

from deploy.launch.planning.gpu_pool import GpuPool
from deploy.launch.planning.model_memory import model_shape, planned_training, received_bytes, sampler_bytes
from learner.model.memory import HEAD_ROOM, Shape, SharedDevice, Training, memory, offloaded_bytes, saved_per_token
from rollout.engine.settings import ENGINE_GIB, kv_bytes
from services.amounts import GIB, in_gib
from services.config.file import as_yaml
from services.config.tree import Config
from services.errors import UserError
from services.weights.link import BUCKET

CONTEXT_GIB = 1.0
"""CUDA context and NCCL buffers of a learner rank. vLLM's own are in ENGINE_GIB. An estimate, not yet measured."""
LINK_GIB = 0.2
"""NCCL's buffers of the link between all sending ranks and samplers. An estimate, not yet measured."""
CONTEXT = "CUDA context"
"""The part of a learner that stays on the GPU in a sampler's turn."""
Transfer = Literal["host", "nccl", "ipc"]
WAYS = {"host": "host memory (weights.transfer=host)", "nccl": "NCCL, from GPU to GPU (weights.transfer=nccl)",
        "ipc": "CUDA IPC, within each GPU (weights.transfer=ipc)"}
ADAPTER_RANK = 16
"""Rank of the adapters that a refusal proposes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRole:
    """One kind of GPU in the plan: all GPUs of this kind hold the same."""

    name: str
    gpus: int
    """Number of GPUs of this kind."""
    holds: dict[str, float]
    """Memory on each GPU in GiB, by its purpose."""

    @property
    def total(self) -> float:
        """Memory in use on each GPU in GiB."""
        return sum(self.holds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """The memory of all GPUs of a run."""

    pool: GpuPool | None
    """The GPUs that the run may use. None if they are unknown, as on a cluster when the config sets no `hardware`."""
    roles: tuple[GpuRole, ...]
    checkpointing: bool
    """Whether the learner computes activations twice: the config asks for it, or the run would not fit otherwise."""
    activations_per_token: float
    """Memory of one token's activations in bytes."""
    offloaded: float = 0.0
    """GiB of a learner rank that move to host memory while a sampler has the GPU."""
    transfer: Transfer = "host"
    """How new weights reach the samplers, with the meaning of weights.transfer."""

    def fits(self) -> bool:
        """Whether every GPU keeps the share HEAD_ROOM of its memory free. True if the GPUs are unknown."""
        return self.pool is None or all(role.total <= (1 - HEAD_ROOM) * self.pool.gib for role in self.roles)


def gpu_plan(config: Config, pool: GpuPool | None) -> GpuPlan | None:
    """Returns the memory plan of the GPUs; None if the run uses no GPUs, or if there is no model to measure."""
    if not (config.rollout.gpus or config.learner.gpus) or config.model.path is None:
        return None
    plan = _plan(config, pool, config.transfer)
    if config.weights.transfer == "auto" and plan.transfer != "host" and (pool is None or not plan.fits()):
        return _plan(config, pool, "host")
    return plan


def with_transfer(config: Config, pool: GpuPool | None) -> Config:
    """Returns the config with the plan's choice in the place of weights.transfer=auto."""
    plan = gpu_plan(config, pool)
    way = config.transfer if plan is None else plan.transfer
    return config.with_keys({"weights.transfer": way})


def _plan(config: Config, pool: GpuPool | None, transfer: Transfer) -> GpuPlan:
    shape = model_shape(config.model)
    training = _training(config, shape, pool, transfer)
    sampler = _sampler(config, shape, pool, transfer) if config.rollout.gpus else {}
    learner: dict[str, float] = {}
    if config.learner.gpus:
        held = asdict(memory(shape, training))
        learner = {name: size / GIB for name, size in held.items() if size} | {CONTEXT: CONTEXT_GIB}
    if transfer != "host":
        version = sampler_bytes(config, shape) / GIB
        learner |= {"version to send": version if transfer == "ipc" else version / training.shards}
    if transfer == "nccl":
        learner |= {"link": LINK_GIB + (BUCKET / GIB if training.shards > 1 else 0.0)}
    roles = (_in_turns(config, sampler, learner) if config.shares_gpus and config.rollout.sleep else
             _roles(config, sampler, learner, shared=config.shares_gpus))
    return GpuPlan(pool=pool, roles=tuple(roles), checkpointing=training.checkpointing,
                   activations_per_token=saved_per_token(shape, half=training.half,
                                                         checkpointing=training.checkpointing, grid=training.grid,
                                                         longest=training.longest),
                   offloaded=offloaded_bytes(shape, training) / GIB if config.rollout.sleep else 0.0, transfer=transfer)


def shared_device(config: Config, pool: GpuPool | None, transfer: Transfer | None = None) -> SharedDevice | None:
    """Returns what a learner rank's GPU holds in addition to its training, as in the plan. None: no sampler shares it,
    or the sampler's size is a share of unknown GPUs. `transfer`: None stands for the config's."""
    gpu_memory = config.rollout.gpu_memory
    if not config.shares_gpus or config.model.path is None or (pool is None and gpu_memory and gpu_memory <= 1):
        return None
    shape, way = model_shape(config.model), transfer or config.transfer
    sampler = _sampler(config, shape, pool, way)
    sampler_gib = ENGINE_GIB if config.rollout.sleep else sum(sampler.values())
    return SharedDevice(occupied=(sampler_gib + CONTEXT_GIB) * GIB,
                        sends=sampler_bytes(config, shape) if way == "ipc" else 0)


def _training(config: Config, shape: Shape, pool: GpuPool | None, transfer: Transfer) -> Training:
    share, shared = min(1.0, config.learner.gpus), shared_device(config, pool, transfer)
    if pool is None or not share:
        return planned_training(config, shape, None)
    room = share * pool.bytes if shared is None else shared.room(pool.bytes)  # as in learner/trainer.py
    return planned_training(config, shape, int(room))


def _sampler(config: Config, shape: Shape, pool: GpuPool | None, transfer: Transfer) -> dict[str, float]:
    weights = sampler_bytes(config, shape)
    cache = kv_bytes(config.rollout, weight_bytes=weights, gpu_bytes=pool.bytes if pool else 0)
    holds = {"sampler weights": weights / config.rollout.tensor_parallel / GIB, "KV cache": cache / GIB,
             "vLLM itself": ENGINE_GIB}
    holds |= {} if transfer == "host" else {"next version": received_bytes(config, shape, transfer) / GIB}
    return holds | ({"link": LINK_GIB} if transfer == "nccl" else {})


def _roles(config: Config, sampler: dict[str, float], learner: dict[str, float], *, shared: bool) -> Iterator[GpuRole]:
    if shared:
        yield GpuRole(name="learner and sampler", gpus=config.learner.ranks, holds=learner | sampler)
        return
    if learner:
        yield GpuRole(name="learner", gpus=config.learner.ranks, holds=learner)
    if sampler:
        together = min(_workers_on_a_gpu(config), config.rollout.workers)
        yield GpuRole(name="sampler", gpus=_sampler_gpus(config),
                   holds={name: size * together for name, size in sampler.items()})


def _in_turns(config: Config, sampler: dict[str, float], learner: dict[str, float]) -> Iterator[GpuRole]:
    """Yields the memory of one GPU in each turn. A sleeping sampler keeps vLLM's own allocations, and a waiting
    learner its CUDA context."""
    own, gpus = "vLLM itself", config.learner.ranks
    yield GpuRole(name="learner, while the sampler sleeps", gpus=gpus, holds=learner | {own: sampler[own]})
    yield GpuRole(name="sampler, while the learner waits", gpus=gpus, holds={CONTEXT: learner[CONTEXT]} | sampler)


def _workers_on_a_gpu(config: Config) -> int:
    """Returns how many workers Ray puts on one GPU."""
    return max(1, int(1 / config.rollout.gpus)) if config.rollout.gpus else 1


def _sampler_gpus(config: Config) -> int:
    """Returns the number of GPUs of rollout workers that share none with the learner."""
    rollout = config.rollout
    if not rollout.gpus:
        return 0
    return rollout.tensor_parallel * math.ceil(rollout.workers / _workers_on_a_gpu(config))


def gpus_needed(config: Config) -> int:
    """Returns the number of GPUs that the run takes."""
    if config.shares_gpus:
        return config.learner.ranks
    return _sampler_gpus(config) + (config.learner.ranks if config.learner.gpus else 0)


def describe(plan: GpuPlan) -> list[str]:
    """Returns the plan as text: one line for each kind of GPU, with its memory by purpose."""
    where = "unknown GPUs: set hardware to check that the run fits" if plan.pool is None else str(plan.pool)
    twice = "computed twice (checkpointing)" if plan.checkpointing else "kept"
    each = f"{plan.activations_per_token / 1e6:.2f} MB a token"
    lines = [f"GPU memory    {where.rstrip(',')}; activations {twice}, {each}"]
    for role in plan.roles:
        parts = ", ".join(f"{name} {in_gib(size * GIB).removesuffix(' GiB')}" for name, size in role.holds.items())
        room = "" if plan.pool is None else f", {plan.pool.gib - role.total:.1f} free"
        lines.append(f"  {role.gpus:g} x {role.name}: {role.total:.1f} GiB{room} ({parts})")
    if plan.offloaded:
        lines.append(f"  each turn moves {plan.offloaded:.1f} GiB of the learner to pinned host memory and back")
    lines.append(f"  new weights reach the samplers by {WAYS[plan.transfer]}")
    return lines


def check_memory(config: Config, pool: GpuPool | None) -> None:
    """Raises UserError if a GPU cannot hold its part of the run. The message names the keys that would make it fit, if
    there are any."""
    plan = gpu_plan(config, pool)
    if plan is None or plan.fits() or pool is None:
        return
    fullest = max(plan.roles, key=lambda role: role.total)
    largest = sorted(fullest.holds.items(), key=lambda item: -item[1])[:3]
    raise UserError(
        f"each GPU for the {fullest.name} would hold {fullest.total:.1f} GiB, and {pool} have {pool.gib:.1f} each "
        f"({', '.join(f'{name} {size:.1f}' for name, size in largest)})", _fix(config, pool))


def _fix(config: Config, pool: GpuPool) -> str:
    """Returns the first change that makes the run fit."""
    for change in _changes(config):
        changed = config.with_keys(change)
        with suppress(UserError):  # raised if this change leaves no room for the KV cache
            plan = gpu_plan(changed, pool)
            if plan is not None and plan.fits() and gpus_needed(changed) <= pool.count:
                return f"set {as_settings(change)}"
    return "use more or larger GPUs, or a smaller model"


def _changes(config: Config) -> Iterator[Mapping[str, object]]:
    """Yields changes that take less memory on each GPU, the cheapest first.

    The last ones make each update slower (moments in host memory) or train fewer weights (adapters).
    Each is tried alone, then in turns with the sampler if they share the GPU, with activations that are computed twice,
    and with a smaller KV cache.
    """
    rollout, learner = config.rollout, config.learner
    twice = {"learner.checkpointing": True}
    own = {} if rollout.gpu_memory is None else {"rollout.gpu_memory": None}
    caches = [{"rollout.kv_cache_gb": rollout.kv_cache_gb / part, **own} for part in (2, 4)]
    more = range(learner.ranks + 1, 8 * learner.ranks + 1)
    if config.weights.transfer in ("nccl", "ipc"):
        yield {"weights.transfer": "host"}
    yield from (twice, *caches)
    yield {"learner.token_budget": rollout.row_tokens, **twice}
    if config.shares_gpus:
        yield {"rollout.sleep": True}
        yield from ({"rollout.workers": count, "learner.ranks": count, "rollout.sleep": True} for count in more)
        yield {"rollout.gpus": 1, "learner.gpus": 1}
    else:
        yield from ({"learner.ranks": count} for count in more)
    yield from ({"rollout.tensor_parallel": count, "rollout.gpus": 1} for count in (2, 4, 8))
    turns = ({}, {"rollout.sleep": True}) if config.shares_gpus and not rollout.sleep else ({},)
    for slower, turn in itertools.product(({"learner.offload": True}, {"learner.lora.rank": ADAPTER_RANK}), turns):
        yield from ({**slower, **turn, **lighter} for lighter in ({}, twice, *({**twice, **one} for one in caches)))


def as_settings(change: Mapping[str, object]) -> str:
    """Returns a change as a user would write it: `learner.offload=true and rollout.kv_cache_gb=10`."""
    *settings, last = (f"{key}={f'{value:g}' if isinstance(value, float) else as_yaml(value)}"
                       for key, value in change.items())
    return " and ".join(filter(None, (", ".join(settings), last)))
