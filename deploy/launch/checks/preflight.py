"""Finds every mistake that shows before anything heavy starts. Each is a UserError of one line.

On a Ray cluster that already runs, CPUs, GPUs and memory are not checked: only its scheduler knows them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from deploy.launch.checks import servers
from deploy.launch.checks.chat_template import check_template
from deploy.launch.checks.games import check_games
from deploy.launch.checks.gpu_checks import check_builds, check_gpus
from deploy.launch.checks.model_folder import check_adapters, check_model, check_teacher, check_weights, described_sizes
from deploy.launch.planning import gpu_pool, machine
from deploy.launch.planning.model_memory import check_cache
from deploy.launch.planning.plan import Plan, host_memory_fix, make_plan
from deploy.launch.planning.task_sets import TaskSets
from deploy.launch.planning.warnings import warnings
from deploy.launch.ray_address import LOOPBACK, check_loopback, check_marks, check_ray, ray_address
from deploy.runs import sinks
from deploy.runs.folder import is_run
from envservice.registry import BUILT_IN, check_settings, find_spec, find_teacher, largest_session, make_template
from envservice.server.capacity import session_limit
from learner.cold_start.trajectories import read_trajectories
from learner.model.family import check_family
from rollout.agents.runner import find_agent
from rollout.engine.settings import check_shape
from services.amounts import GIB
from services.config.tree import Config
from services.errors import UserError, check_together
from services.files import read_json
from services.object_folder import ObjectFolder

TAGGED = ("meta", "compact-meta")
"""The prompts of ours whose answers name their kind of reasoning."""
NEEDS_TORCHVISION = "qwen3_5"
"""Prefix of the families (model_type) for which vLLM imports torchvision, even if no prompt has an image."""


def check(config: Config, *, planned: bool = False, before: Config | None = None,
          report: servers.Report = print) -> TaskSets:
    """Returns the run's task sets. Raises UserError with the mistakes that would stop the run, after its warnings.

    `planned`: nothing will be started here. If the config also names GPUs in `hardware`, this machine is not
    checked.
    `before`: the config of the run that continues, whose servers are waited for (servers.py); None for a new run.
    `report` takes a line about each wait and each warning.
    """
    task_sets: list[TaskSets] = []

    def games() -> None:
        task_sets.append(check_games(config, report))

    try:
        check_together(
            partial(_places, config, elsewhere=planned and gpu_pool.named(config) is not None),
            *([partial(_choices, config)] if before is None else []), partial(_object_stores, config),
            partial(check_parts, config, planned=planned, before=before, report=report),
            *([] if config.env.urls else [games]))
        if config.env.urls:  # they answer
            games()
    except UserError:
        with suppress(UserError, OSError):  # a model or an environment that cannot be read is among the mistakes
            for line in warnings(config):
                report(f"warning: {line}")
        raise
    (sets,) = task_sets
    servers.check_played(config, before, report, env=sets.env_name, engine=sets.engine)
    return sets


def check_parts(config: Config, *, planned: bool = False, before: Config | None = None, report: servers.Report = print,
                learner: bool = True) -> None:
    """Makes the checks that runs and evaluations share. Raises UserError.

    `learner`: whether the config's learner will be started. An evaluation has none. Checks that read the model or the
    environment come after the checks that these exist. Servers are asked last.
    """
    check_together(partial(_environment, config), partial(check_policy, config),
                   *([partial(_credit, config)] if learner else []), partial(sinks.check, config))
    plan = make_plan(config, learner=learner)
    here = plan.private_ray and not (planned and gpu_pool.named(config) is not None)
    check_together(partial(check_template, config), partial(check_learner if learner else _sessions, config),
                   partial(_devices, config, plan, here=here),
                   *([partial(_machine, config, plan, learner=learner)] if here else []))
    if not plan.private_ray:
        check_ray(ray_address(config) or "")
    servers.check_redis(config, before, report)
    servers.check_servers(config, before, report)
    if not config.env.urls:  # servers that already run reach their data themselves
        for entry in config.env.entries:
            find_spec(entry.name).reachable(entry)
    if config.agent.name is not None:
        servers.check_agents_tools(config, before, report)


def lacks(config: Config) -> list[UserError]:
    """Returns what this machine lacks for a run that --dry-run planned for the GPUs that the config names.

    It is empty for a config that names none, which is checked against this machine, and on a Ray cluster.
    """
    plan = make_plan(config)
    if gpu_pool.named(config) is None or not plan.private_ray:
        return []

    try:
        check_together(partial(check_gpus, config, gpu_pool.visible(), private=True), partial(check_builds, config),
                       partial(_machine, config, plan, learner=True))
    except UserError as error:
        return [error, *error.others]
    return []


def _devices(config: Config, plan: Plan, *, here: bool) -> None:
    """Checks the GPUs that the config asks for. `here`: the run starts on this machine."""
    check_together(partial(check_gpus, config, gpu_pool.pool_of(config), private=plan.private_ray),
                   *([check_loopback, partial(check_marks, config), partial(check_builds, config)] if here else []))


def check_learner(config: Config) -> None:
    """Checks the estimator, the batch, the servers' sessions, the adapters and the teacher. Raises UserError."""
    check_together(partial(_credit, config), partial(_batch, config), partial(_sessions, config),
                   partial(check_adapters, config), partial(check_teacher, config))


def _object_stores(config: Config) -> None:
    if config.storage.url is not None:
        ObjectFolder(config.storage.url).check()
    if config.redis.bodies is not None:
        # The store waits for a local folder that is missing, as for one that is not mounted (services/store/bodies.py).
        ObjectFolder(config.redis.bodies).check("redis.bodies", made=False)


def _choices(config: Config) -> Iterator[UserError]:
    """Yields a UserError for choices that would do nothing in a run, and for settings with which rollout.exact could
    not keep its promise of the same bits."""
    learner, sft, autoscale = config.learner, config.sft, config.autoscale
    if sft.file is not None and not config.imitates:
        yield UserError(f"sft.file={sft.file} would not be read, because sft.enabled is false",
                        "set sft.enabled=true, or leave sft.file out")
    if sft.judgements and sft.file is not None:
        yield UserError(f"sft.judgements={sft.judgements:g} shows none of the trajectories in {sft.file}",
                        "set it to 0, and write judgements into the file")
    if learner.judge.questions and not sft.judgements and config.model.path is None and sft.file is None:
        yield UserError(f"learner.judge.questions={learner.judge.questions}, and a model made from scratch has never "
                        "seen a judgement", "set sft.judgements=0.1")
    if autoscale.env is not None and config.env.urls:
        yield UserError(f"autoscale.env={list(autoscale.env)} scales servers that the run starts, and env.urls "
                        "names others", "scale those where they run, and leave autoscale.env out")
    for key, count, role in (("rollout.workers", config.rollout.workers, "rollout"),
                             ("env.servers", config.env.servers, "env")):
        bounds = getattr(autoscale, role)
        if bounds is not None and not bounds[0] <= count <= bounds[1]:
            yield UserError(f"{key}={count} is outside autoscale.{role}={list(bounds)}, so the run would not start "
                            "with it", f"set {key} to a number within these bounds, or change them")
    for key, why in (("staleness", "episodes continue under weights that come at any moment"),
                     ("gpus", "the sums of a GPU come in any order")):
        if config.rollout.exact and (value := getattr(learner, key)):
            yield UserError(f"rollout.exact repeats a run, and with learner.{key}={value:g} {why}",
                            f"set learner.{key}=0, or rollout.exact=false")


def _places(config: Config, *, elsewhere: bool) -> Iterator[UserError]:
    """Checks that runs_dir, metrics.host and metrics.port can be used. `elsewhere`: the driver's machine is another."""
    if is_run(config.run_dir):  # another runs_dir has no run to continue
        machine.check_writable(config.run_dir, str(config.run_dir), "make it writable for this user")
    else:
        machine.check_writable(config.run_dir, f"runs_dir={config.runs_dir}",
                               "set runs_dir to a folder that you may write to")
    port, host = config.metrics.port, config.metrics.host
    named = host != LOOPBACK or ray_address(config) is not None  # check_loopback reports one that is missing
    if named and not elsewhere and not machine.port_is_free(0, host):
        yield UserError(f"metrics.host={host} is no address of this machine", "give one of its own, or leave it out")
    if port and not machine.port_is_free(port, host):
        yield UserError(f"metrics.port={port} is in use on {host}", "choose another, or metrics.port=0 for a free one")


def _environment(config: Config) -> None:
    check_settings(config.env)
    if config.agent.name is not None:
        find_agent(config.agent.name, starts=ray_address(config) is None)  # a cluster's machines have their own files
    if config.imitates and config.sft.file is None:
        for entry in config.env.entries:
            find_teacher(entry)
    elif config.imitates and config.sft.file is not None:
        read_trajectories(config.sft.file, chat=make_template(config.env).chat)


def check_policy(config: Config) -> None:
    """Raises UserError for a model that cannot be loaded, or is too short for the config's prompts and answers."""
    path, template = config.model.path, config.model.chat_template
    if template is not None and not template.is_file():
        raise UserError(f"there is no file {template}", "set model.chat_template to a file with a Jinja template")
    if path is None:
        check_scratch(config)
        return
    if not path.is_dir():
        raise UserError(f"there is no model at {path}",
                        "set model.path to a Hugging Face folder, or to a name of the hub with model.download=true")
    check_model(path)
    check_family(path)
    _check_torchvision(path)
    check_weights(path)
    longest = described_sizes(path).get("max_position_embeddings")
    if not config.rollout.gpus:
        check_shape(path)
    wanted = config.rollout.row_tokens
    if longest is not None and wanted > longest:
        raise UserError(f"prompt and response may take {wanted} tokens, and the model has {longest} positions",
                        "lower rollout.max_prompt_tokens or rollout.max_response_tokens")


def _check_torchvision(path: Path) -> None:
    """Raises UserError if vLLM needs torchvision for the model's family and it is not installed."""
    family = read_json(path / "config.json", dict[str, Any]).get("model_type")
    if str(family).startswith(NEEDS_TORCHVISION) and importlib.util.find_spec("torchvision") is None:
        raise UserError(f"the model at {path} is of the family {family}, for which vLLM needs torchvision, and "
                        "scripts/setup removes it",
                        "install the one that fits this torch, or choose a family of docs/models.md")


def check_scratch(config: Config) -> None:
    """Raises UserError if no small model can be made from scratch as the config says."""
    from learner.cold_start.scratch_model import HEAD_SIZES

    model = config.model
    if not config.sft.enabled:
        raise UserError("there is no policy to start from: model.path is empty and sft.enabled is false",
                        "set model.path, or sft.enabled=true")
    if model.hidden % model.heads or model.hidden // model.heads not in HEAD_SIZES:
        raise UserError(
            f"model.hidden={model.hidden} and model.heads={model.heads} make heads that the sampler cannot serve",
            f"choose hidden / heads among {', '.join(map(str, HEAD_SIZES))}")


def _credit(config: Config) -> Iterator[UserError]:
    """Checks that the estimator exists, and that the loss, the prompt, the agent and the group size suit it."""
    from learner.credit.checks import try_estimator
    from learner.credit.registry import ESTIMATORS, estimator, options_of

    options = options_of(config.learner.credit)
    learner, name = config.learner, config.learner.credit.estimator
    chosen = estimator(name)
    if chosen.needs_critic and getattr(options, "values", "tokens") == "tokens" and learner.loss.ratio != "token":
        yield UserError(f"estimator {name} gives each token its own advantage, and "
                        f"learner.loss.ratio={learner.loss.ratio} has one ratio per action",
                        "set learner.loss.ratio=token, or learner.credit.values=turns")
    for entry in config.env.entries if getattr(chosen, "rewards_tags", False) else ():
        if entry.name in BUILT_IN and entry.prompt not in TAGGED:
            yield UserError(f"the estimator {name} rewards kinds of reasoning, and env.prompt={entry.prompt} asks for "
                            "none", f"set env.prompt to one of {', '.join(TAGGED)}")
    if getattr(chosen, "rewards_tags", False) and config.agent.name:
        yield UserError(f"the estimator {name} rewards kinds of reasoning, and those of the answers that "
                        f"agent.name={config.agent.name} gets are not read", "leave agent.name out, or choose another "
                        "estimator")
    if learner.judge.questions and (chosen.needs_critic or config.agent.name):
        whose = f"estimator {name} has a critic" if chosen.needs_critic else f"agent.name={config.agent.name} plays"
        yield UserError(f"learner.judge.questions={learner.judge.questions}, but {whose}, and there is no judge task "
                        "for that", "set learner.judge.questions=0")
    if learner.group_size == 1 and not chosen.needs_critic and getattr(chosen, "needs_group", True):
        yield UserError(f"learner.group_size=1 leaves estimator {name} nothing to compare an episode with",
                        "set it to 2 or more")
    if learner.group_size == 1 and learner.dynamic_sampling:
        yield UserError("learner.dynamic_sampling drops groups whose episodes all earn the same, "
                        "and with learner.group_size=1 that is every group", "set one of them to another value")
    if name not in ESTIMATORS:
        try_estimator(config.learner.credit, learner.group_size)


def _batch(config: Config) -> Iterator[UserError]:
    """Checks that the token budget holds the longest row, and that each rank gets an episode in each step."""
    learner, row = config.learner, config.rollout.row_tokens
    episodes = learner.groups_per_step * learner.group_size
    if learner.token_budget < row:
        yield UserError(f"learner.token_budget={learner.token_budget} holds no whole row of up to {row} tokens",
                        f"raise it to {row} or more, or lower rollout.max_prompt_tokens")
    if learner.ranks > episodes:
        yield UserError(f"{learner.ranks} learner ranks share {episodes} episodes per step, so some would have none",
                        "lower learner.ranks or raise learner.groups_per_step")


def _sessions(config: Config) -> Iterator[UserError]:
    """Checks that the KV cache holds a row, and that the environment servers hold the workers' games."""
    rollout, env = config.rollout, config.env
    check_cache(config)
    each = session_limit(env, largest_session(env))
    sessions = env.servers * each
    if not env.urls and rollout.workers * rollout.slots > sessions:  # servers of others may be more than their names
        yield UserError(
            f"{rollout.workers} workers with {rollout.slots} slots play more games than "
            f"the environment servers' {sessions} sessions",
            "lower rollout.slots, or raise " + ("env.memory_gb" if each < env.max_sessions else
                                                "env.max_sessions or env.servers"))


def _machine(config: Config, plan: Plan, *, learner: bool) -> Iterator[UserError]:
    cpus, free = machine.cpu_count(), machine.available_memory() / GIB
    if plan.cpus > cpus:
        yield UserError(f"the plan reserves {plan.cpus:g} CPUs, and this machine has {cpus:g}",
                        "lower rollout.workers, rollout.cpus, learner.ranks or learner.cpus")
    for key, threads in (("rollout.threads", config.rollout.threads), ("learner.threads", config.learner.threads)):
        if threads > max(1, cpus):
            yield UserError(f"{key}={threads}, and this machine has {cpus:g} CPUs", f"set {key}={max(1, int(cpus))}")
    if plan.memory_gib > free:
        yield UserError(f"the plan needs about {plan.memory_gib:.1f} GiB of memory, and {free:.1f} are available",
                        host_memory_fix(config, free, learner=learner))
    if gpu_pool.named(config) is not None:
        check_gpus(config, gpu_pool.visible(), private=True)
