"""Plans a run from its config alone: processes, ports, CPUs, memory and tokens. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from deploy.launch.planning.gpu_plan import ADAPTER_RANK, GpuPlan, as_settings, gpu_plan
from deploy.launch.planning.gpu_plan import describe as describe_gpus
from deploy.launch.planning.gpu_pool import pool_of
from deploy.launch.planning.model_memory import (
    STORED,
    check_cache,
    model_shape,
    pack_tokens,
    planned_training,
    sampler_bytes,
    training_seconds,
)
from deploy.launch.planning.warnings import warnings
from deploy.launch.ray_address import ray_address
from deploy.runs.folder import RunFolder, standing
from deploy.runs.model_sources import origin
from envservice.registry import find_spec, largest_session
from learner.credit.registry import declared, keys_read, options_of
from learner.model.memory import checkpoint_copy, host_moments, memory, offloaded_bytes
from services.amounts import GIB, number_of
from services.config.tree import Config
from services.errors import UserError
from services.process.own_code import as_user_error

FORMAT = 1
SMALLEST_PASS = 2048
"""Tokens of the smallest pass that is proposed alone. Smaller ones leave the processors idle for longer."""
SMALLEST_CACHE_GB = 0.1
"""Smallest KV cache that is proposed where memory is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One kind of process. Ray reserves its CPUs and GPUs; its memory is an estimate."""

    name: str
    count: int = 1
    cpus: float = 0.0
    """CPUs of each process."""
    gpus: float = 0.0
    """GPUs of each process."""
    memory_gib: float
    """Host memory of each process in GiB."""
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one run: its processes, and the size of one learner step."""

    run_dir: str
    model: str
    parameters: int
    processes: tuple[Process, ...]
    groups_per_step: int
    episodes_per_step: int
    rows_per_step: int
    """Upper bound: reached if every episode uses all its turns, or calls of its agent, and is asked all questions."""
    tokens_per_step: int
    """Upper bound: reached if every row fills its prompt and its response."""
    pack_tokens: int
    """Tokens in each pack of one rank in a pass with gradients, if rows have a quarter of the longest one's tokens."""
    private_ray: bool

    @property
    def cpus(self) -> float:
        """CPUs reserved at once."""
        return sum(process.count * process.cpus for process in self.processes)

    @property
    def gpus(self) -> float:
        """GPUs reserved at once."""
        return sum(process.count * process.gpus for process in self.processes)

    @property
    def memory_gib(self) -> float:
        """Estimated host memory of all processes in GiB."""
        return sum(process.count * process.memory_gib for process in self.processes)


def make_plan(config: Config, *, learner: bool = True) -> Plan:
    """Returns the plan of a config. If the config names a model, reads only the headers of its files.

    `learner`: whether the plan has the learner's ranks, which an evaluation does not start.
    """
    episodes = config.learner.groups_per_step * config.learner.group_size
    judge, turns = config.learner.judge, config.agent.max_calls if config.agent.name else \
        max(entry.max_steps for entry in config.env.entries)
    rows = episodes * (turns + (judge.answers * (judge.questions + 1) if judge.questions else 0))
    return Plan(
        run_dir=str(config.run_dir),
        model=origin(config.model.path) or str(config.model.path or "Qwen2 architecture, from scratch"),
        parameters=model_shape(config.model).parameters,
        processes=(*_processes(config, versions=STORED if learner else STORED - 1),
                   *((_ranks(config),) if learner else ())),
        groups_per_step=config.learner.groups_per_step,
        episodes_per_step=episodes,
        rows_per_step=rows,
        tokens_per_step=rows * config.rollout.row_tokens,
        pack_tokens=pack_tokens(config, min(rows, config.learner.minibatch_rows)),
        private_ray=uses_private_ray(config),
    )


def uses_private_ray(config: Config) -> bool:
    """Returns whether the run starts its own Ray on this machine."""
    return ray_address(config) is None


def _learner_gib(config: Config) -> float:
    """Returns the host memory of one learner rank in GiB, without its Python process.

    On CPUs that is all of learner/model/memory.py. With a GPU it is the moments of the optimizer if they are in host
    memory, all states that wait there for their turn on a shared GPU, and a rank's part of two copies of the weights,
    on their way to a checkpoint and to the rollout workers. Both include the copy from which a checkpoint is written
    while training continues.
    """
    shape = model_shape(config.model)
    training = planned_training(config, shape, None)
    copy = checkpoint_copy(shape, training)
    if config.learner.gpus:
        weights = 2 * sampler_bytes(config, shape) / config.learner.ranks
        waiting = offloaded_bytes(shape, training) if config.rollout.sleep else 0
        return (copy + host_moments(shape, training) + waiting + weights) / GIB
    return (copy + memory(shape, training).total) / GIB


def _worker_gib(config: Config, weights: float) -> float:
    """Returns the host memory of one rollout worker in GiB. With a GPU: its processes, and weights being received."""
    if config.rollout.gpus:
        return 1.0 + 3.0 * config.rollout.tensor_parallel + weights * (2 if config.rollout.sleep else 1)
    return 0.8 + config.rollout.kv_cache_gb + 3 * weights


def _processes(config: Config, *, versions: int) -> tuple[Process, ...]:
    """Returns the processes without the learner's ranks. Constant amounts of memory are rounded from small runs; the
    rest follows the model. `versions`: of the weights in Ray's object store."""
    rollout = config.rollout
    weights = sampler_bytes(config, model_shape(config.model)) / GIB
    local = [Process(name="controller", memory_gib=0.5, address="this process")]
    if config.redis.url is None:
        local.append(Process(name="Redis", memory_gib=0.2, address="127.0.0.1, a free port"))
    if uses_private_ray(config):
        local.append(Process(name="Ray head", memory_gib=1.4, address="127.0.0.1, free ports"))
    if not config.env.urls:
        games = math.ceil(rollout.workers * rollout.slots / config.env.servers)
        local.append(Process(name="environment server", count=config.env.servers,
                             memory_gib=0.3 + games * largest_session(config.env) / GIB,
                             address="127.0.0.1, a free port each"))
    return (
        *local,
        Process(name="weights actor", memory_gib=0.2 + versions * weights, address="Ray"),
        Process(name="rollout worker", count=rollout.workers, cpus=rollout.cpus, gpus=rollout.reserved_gpus,
                memory_gib=_worker_gib(config, weights), address="Ray"),
    )


def _ranks(config: Config) -> Process:
    learner = config.learner
    return Process(name="learner rank", count=learner.ranks, cpus=learner.cpus, gpus=learner.gpus,
                   memory_gib=0.9 + _learner_gib(config), address="Ray")


def host_memory_fix(config: Config, free_gib: float, *, learner: bool = True) -> str:
    """Returns the first change with which the plan takes at most `free_gib` of host memory, the cheapest tried first.

    `learner`: as in make_plan.
    """
    least, smallest = make_plan(config, learner=learner).memory_gib, ""
    for change in _lighter(config):
        with suppress(UserError):  # raised if the KV cache no longer holds a row
            check_cache(changed := config.with_keys(change))
            needed = make_plan(changed, learner=learner).memory_gib
            if needed <= free_gib:
                return f"set {as_settings(change)}, which needs {needed:.1f} GiB"
            if needed < least:
                least, smallest = needed, f"set {as_settings(change)} and "
    return f"{smallest}use a machine with {least:.1f} GiB available, or a smaller model"


def _lighter(config: Config) -> Iterator[Mapping[str, object]]:
    """Yields changes that take less host memory.

    Smaller passes come first, because they change no result. Adapters come last: they train fewer weights.
    """
    rollout, learner, row = config.rollout, config.learner, config.rollout.row_tokens
    yield from ({"learner.token_budget": count} for count in halves(learner.token_budget, max(row, SMALLEST_PASS)))
    yield from ({"rollout.kv_cache_gb": size} for size in halves(rollout.kv_cache_gb, SMALLEST_CACHE_GB))
    yield from ({"rollout.slots": count} for count in halves(rollout.slots, 1))
    twice = {"learner.checkpointing": True}
    short = {**twice, "learner.token_budget": min(row, learner.token_budget)}
    yield from (twice, short)
    yield from ({"rollout.workers": count} for count in range(rollout.workers - 1, 0, -1))
    yield from ({"learner.ranks": count} for count in range(learner.ranks - 1, 0, -1))
    if not learner.lora.rank:
        yield from ({"learner.lora.rank": ADAPTER_RANK, **more} for more in ({}, twice, short))


def halves(value: float, least: float) -> Iterator[float]:
    """Yields a half of the value, a quarter and so on, down to `least`. Those of an integer are rounded down."""
    while (value := value // 2 if isinstance(value, int) else value / 2) >= least:
        yield value


def as_dict(config: Config) -> dict[str, Any]:
    """Returns the plan and the resolved config as JSON values, for programs."""
    plan = make_plan(config)
    totals = {"cpus": plan.cpus, "gpus": plan.gpus, "memory_gib": round(plan.memory_gib, 2)}
    gpu_memory = gpu_plan(config, pool_of(config))
    return {"format": FORMAT, **asdict(plan), **totals, "gpu_memory": gpu_memory and asdict(gpu_memory),
            "training_seconds": _training_seconds(config, plan, gpu_memory),
            "warnings": warnings(config), "config": config.model_dump(mode="json")}


def describe(config: Config, *, resume: bool = False, games: str | None = None, kept: Config | None = None) -> str:
    """Returns the plan as text of a few lines. `resume`: whether a run that is in the folder may continue.

    `games`: TaskSets.games, compared with that of the run in the folder. `kept`: the config that the run will keep in
    its folder, if the plan is made with another model."""
    plan, gpu_memory = make_plan(config), gpu_plan(config, pool_of(config))
    seconds = _training_seconds(config, plan, gpu_memory)
    lines = [
        f"run           {plan.run_dir}, {number_of(config.steps, 'learner step')}, seed {config.seed}",
        *_folder(kept or config, resume=resume, games=games),
        *(f"warning       {line}" for line in warnings(config)),
        f"model         {plan.model}, {plan.parameters:,} parameters, {config.model.dtype}",
        *(f"games         {_games(view, share)}" for view, share in zip(config.views, _shares(config), strict=True)),
        *([f"cold start    {_cold_start(config)}"] if config.sft.enabled else []),
        f"credit        {_credit(config)}",
        *(f"each step     {line}" for line in _signals(config)),
        f"each step     {number_of(plan.groups_per_step, 'group')} of {config.learner.group_size}: "
        f"{plan.episodes_per_step:,} episodes, at most {plan.rows_per_step:,} rows and {plan.tokens_per_step:,} tokens",
        f"packs         about {plan.pack_tokens:,} of {config.learner.token_budget:,} tokens on each rank "
        f"({100 * plan.pack_tokens / config.learner.token_budget:.0f}%), if rows have a quarter of the longest one's",
        *([] if seconds is None else [
            f"training      about {seconds:,.0f} s a step for {plan.rows_per_step:,} such rows, at the speed of 1.5B "
            "on an H100, without sampling and communication"]),
        "processes     count  CPUs  GPUs  GiB   where",
    ]
    lines += [
        f"  {process.name:<18}{process.count:>5}{process.cpus:>6g}{process.gpus:>6g}{process.memory_gib:>6.1f}"
        f"  {process.address}" for process in plan.processes
    ]
    lines += [f"  redis at {config.redis.url.rpartition('@')[2]}"] if config.redis.url else []
    lines += [f"  environment server at {url}" for url in config.env.urls]
    lines += [] if plan.private_ray else [f"  Ray at {ray_address(config)}"]
    lines += describe_gpus(gpu_memory) if gpu_memory else []
    lines.append(f"  together {plan.cpus:g} CPUs, {plan.gpus:g} GPUs, about {plan.memory_gib:.1f} GiB of host memory")
    lines.append("nothing was started")
    return "\n".join(lines)


def _credit(config: Config) -> str:
    """Describes the estimator by the keys that it reads: gamma, lam, and those that are not at their default."""
    section = config.learner.credit
    options, read = options_of(section), keys_read(section) - {"estimator"}
    texts = [section.estimator, f"states by {options.state_key}"] if "state_key" in read else [section.estimator]
    for name, default in declared(section).items():
        value = getattr(options, name, default)
        if name in read - {"state_key"} and (value != default or name in ("gamma", "lam")):
            texts.append(f"{name} {value}")
    return ", ".join(texts)


def _training_seconds(config: Config, plan: Plan, gpu_memory: GpuPlan | None) -> float | None:
    """Returns the seconds of a step's passes; None unless it uses GPUs in bfloat16, as the estimate assumes."""
    if gpu_memory is None or not config.learner.gpus or config.model.dtype != "bfloat16":
        return None
    return training_seconds(config, plan.rows_per_step, checkpointing=gpu_memory.checkpointing)


def _folder(config: Config, *, resume: bool, games: str | None) -> list[str]:
    """Describes what a start would find in the run's folder. Planning itself never fails because of it."""
    problem = standing(config, resume=resume, games=games)
    if problem is not None:
        return [f"folder        a start would be refused: {problem[0]}; {problem[1]}"]
    if RunFolder(config.run_dir).identity():
        return [f"folder        {config.run_dir} holds a run, which would continue"]
    return []


def _cold_start(config: Config) -> str:
    sft = config.sft
    shown = "a scripted player" if sft.file is None else str(sft.file)
    length = f"{sft.minutes:g} min" if sft.epochs is None else number_of(sft.epochs, "epoch")
    where = number_of(config.learner.ranks, "learner rank") if config.imitates_on_ranks else "this process, on the CPU"
    return f"imitates {shown} for {length}, trained by {where}"


def _signals(config: Config) -> Iterator[str]:
    """Yields a line for each signal other than the reward."""
    imitation, distill = config.learner.imitation, config.learner.distill
    if imitation.weight:
        yield (f"imitates {number_of(imitation.rows, 'demonstrated turn')} at weight {imitation.weight:g}"
               f"{_until(imitation.decay_steps)}")
    if distill.teacher is not None:
        yield (f"{distill.teacher} scores the sampled tokens at weight {distill.weight:g}"
               f"{_until(distill.decay_steps)}, added to credit at weight {distill.credit:g}")


def _until(decay_steps: int | None) -> str:
    return "" if decay_steps is None else f", which falls to 0 in {number_of(decay_steps, 'step')}"


def _shares(config: Config) -> list[str]:
    """Returns what each environment of a list gets of the training groups, in words; nothing for one alone."""
    entries = config.env.entries
    total = sum(entry.weight for entry in entries)
    return [f", {entry.weight / total:.0%} of the groups, prompt {entry.prompt}, at most "
            f"{number_of(entry.max_steps, 'turn')}" if len(entries) > 1 else "" for entry in entries]


def _games(config: Config, share: str) -> str:
    name = config.env.name
    with as_user_error(f"describe of {name} failed", f"fix {name.partition(':')[0]}"):
        return f"{name}, {find_spec(name).describe(config.env)}{share}"
