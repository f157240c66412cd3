"""Refuses GPU settings that cannot work before anything starts: impossible placements, too few GPUs, wrong builds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from deploy.launch.checks import doctor
from deploy.launch.planning import gpu_pool, machine
from deploy.launch.planning.gpu_plan import check_memory, gpus_needed
from deploy.launch.planning.gpu_pool import GpuPool
from deploy.launch.planning.model_memory import model_shape
from deploy.launch.ray_address import check_loopback, check_marks, check_ray, ray_address
from learner.model.memory import Shape
from services.config.tree import Config
from services.errors import UserError, check_together
from services.process.packages import installed

MOST_PARALLEL = 16
"""Largest number of GPUs that a refusal proposes for one engine."""


def check_gpus(config: Config, pool: GpuPool | None, *, private: bool) -> None:
    """Raises UserError for GPU settings that are wrong.

    `pool`: the GPUs that the run may use, None if they are unknown. `private`: the run starts Ray on this machine,
    so `pool=None` means that there is no GPU at all.
    """
    check_together(partial(_placement, config), partial(_transfer, config))
    check_together(partial(_count, config, pool, private=private), partial(check_memory, config, pool))


def check_builds(config: Config) -> None:
    """Raises UserError if the installed builds of vLLM and torch do not fit the config's devices, the machine or each
    other."""
    rollout, learner = config.rollout, config.learner
    check_together(_clashes, partial(_sampler, config),
                   *([partial(_hardware, config)] if rollout.gpus or learner.gpus else []), partial(_torch, config))


def check_ranks(config: Config) -> None:
    """Raises UserError if the learner's ranks cannot start, for a cold start without a run, which needs no sampler."""
    address = ray_address(config)
    alone = config.with_keys({"rollout.gpus": 0.0, "rollout.sleep": False, "rollout.tensor_parallel": 1,
                              "weights.transfer": "auto"})
    gpus = partial(check_gpus, alone, gpu_pool.pool_of(alone), private=address is None)
    if address is not None:
        gpus()
        check_ray(address)
        return
    visible = partial(check_gpus, alone, gpu_pool.visible(), private=True)
    check_together(gpus, check_loopback, partial(check_marks, config), partial(_torch, config),
                   partial(_rank_cpus, config), *([visible] if gpu_pool.named(config) is not None else []),
                   *([partial(_hardware, alone)] if config.learner.gpus else []))


def _rank_cpus(config: Config) -> None:
    asked, cpus = config.learner.ranks * config.learner.cpus, machine.cpu_count()
    if asked > max(2.0, cpus):
        raise UserError(f"{config.learner.ranks} learner ranks reserve {asked:g} CPUs, and this machine has {cpus:g}",
                        "lower learner.ranks or learner.cpus")


def _clashes() -> Iterator[UserError]:
    """Yields a UserError for each combination of packages that cannot work together or on this machine."""
    for finding in (*doctor.clash(), *doctor.numa()):
        yield UserError(finding.detail, finding.fix)


def _sampler(config: Config) -> None:
    rollout = config.rollout
    if rollout.gpus and installed("vllm") is None:
        raise UserError(f"rollout.gpus={rollout.gpus:g}, and vLLM's build for CPUs is installed",
                        "install `.[cuda]` in a fresh virtual environment, or set rollout.gpus=0")
    if not rollout.gpus and installed("vllm") is not None:
        raise UserError("rollout.gpus=0, and vLLM's build for CUDA would take GPU 0 without a reservation",
                        "use a machine with a GPU, set rollout.gpus=1 or a share of a GPU, or install `.[cpu]`")


def _torch(config: Config) -> None:
    if config.learner.gpus and not doctor.torch_cuda():
        raise UserError(f"learner.gpus={config.learner.gpus:g}, and torch is a build for CPUs",
                        "install `.[cuda]` in a fresh virtual environment, or set learner.gpus=0")


def _hardware(config: Config) -> Iterator[UserError]:
    """Yields a UserError for each thing that the config asks for and this machine's GPUs or compilers cannot do."""
    half, sampled = config.model.dtype == "bfloat16", config.rollout.gpus > 0
    lowest = next(iter(doctor.capabilities()), None)
    if half and lowest and doctor.OLDEST <= lowest < doctor.WITH_BFLOAT16:
        yield UserError(f"model.dtype=bfloat16, and a GPU of this machine has compute capability {lowest[0]}."
                        f"{lowest[1]}: bfloat16 begins at 8.0",
                        "set model.dtype=float32, or hide this GPU by CUDA_VISIBLE_DEVICES")
    sampling = [doctor.compiler(), *([doctor.attention()] if half else [])] if sampled else []
    for finding in (doctor.generation(), *sampling):
        if finding.status == "error":
            yield UserError(f"this machine cannot run on its GPUs: {finding.detail}", finding.fix)


def _placement(config: Config) -> Iterator[UserError]:
    """Yields a UserError for workers and ranks that cannot share GPUs as configured, and for a tensor_parallel that
    does not split the model into equal parts, which vLLM requires."""
    rollout, learner, shares = config.rollout, config.learner, config.shares_gpus
    parts, shape = rollout.tensor_parallel, model_shape(config.model)
    if shares and rollout.workers != learner.ranks:
        yield UserError(f"shared GPUs hold one rollout worker and one learner rank each, and rollout.workers="
                        f"{rollout.workers} with learner.ranks={learner.ranks}",
                        f"set rollout.workers={learner.ranks} or learner.ranks={rollout.workers}, or give each side "
                        "whole GPUs with rollout.gpus=1 and learner.gpus=1")
    if shares and (learner.fewest_ranks or learner.ranks) < learner.ranks:
        yield UserError(f"learner.fewest_ranks={learner.fewest_ranks} is for ranks with GPUs of their own, and each "
                        "rank shares one with a rollout worker", "remove learner.fewest_ranks, or set learner.gpus=1")
    if not shares and 0 < learner.gpus < 1 and learner.ranks > 1:
        yield UserError(f"learner.gpus={learner.gpus:g} puts several of {learner.ranks} ranks on one GPU, "
                        "and NCCL refuses that", "set learner.gpus=1, or learner.ranks=1")
    if rollout.sleep and not shares:
        yield UserError(f"rollout.sleep=true is for a GPU that sampler and learner share, and rollout.gpus="
                        f"{rollout.gpus:g} with learner.gpus={learner.gpus:g} is none",
                        "set rollout.sleep=false, or shares such as rollout.gpus=0.4 and learner.gpus=0.6")
    if shares and config.eval.compare_cold_start and config.sft.enabled and config.imitates_on_ranks:
        yield UserError("eval.compare_cold_start trains a second cold start after RL, and rollout workers share "
                        "the learner's GPUs then",
                        "set eval.compare_cold_start=false, or rollout.gpus=1 and learner.gpus=1")
    if not _splits(shape, parts):
        fitting = [str(count) for count in range(1, MOST_PARALLEL + 1) if _splits(shape, count)]
        yield UserError(f"rollout.tensor_parallel={parts} cannot split the model's {shape.heads} attention heads, "
                        f"{_key_heads(shape)} of them with keys, and {shape.intermediate} feed-forward columns evenly",
                        f"set it to {' or '.join(fitting)}")


def _key_heads(shape: Shape) -> int:
    return shape.keys * shape.heads // max(1, shape.queries)


def _splits(shape: Shape, parts: int) -> bool:
    """Returns whether heads and columns divide evenly over `parts` GPUs. Key heads may be copied to several GPUs."""
    keys = _key_heads(shape)
    return not (shape.heads % parts or shape.intermediate % parts or (keys % parts and parts % keys))


def _transfer(config: Config) -> Iterator[UserError]:
    rollout, learner, way = config.rollout, config.learner, config.weights.transfer
    gpus = f"rollout.gpus={rollout.gpus:g}{{}} learner.gpus={learner.gpus:g}"
    if way not in ("nccl", "ipc"):
        return
    if not (rollout.gpus and learner.gpus):
        yield UserError(f"weights.transfer={way} goes from GPU to GPU, and {gpus.format(' with')}",
                        "set weights.transfer=host, or auto")
    elif rollout.sleep:
        yield UserError(f"weights.transfer={way} needs samplers that are awake while the learner's weights are on the "
                        "GPU, and rollout.sleep=true", "set weights.transfer=host, or rollout.sleep=false")
    elif config.shares_gpus != (way == "ipc"):
        other, where = ("ipc", "shares its GPU with a learner rank") if way == "nccl" else ("nccl", "has its own GPU")
        yield UserError(f"weights.transfer={way}, and each sampler {where} ({gpus.format(',')})",
                        f"set weights.transfer={other}, or auto")


def _count(config: Config, pool: GpuPool | None, *, private: bool) -> None:
    """Raises UserError for too few GPUs: how many there are, who says so, and how to fix it."""
    needed = gpus_needed(config)
    if needed > (pool.count if pool else 0) and (pool or private):
        raise _too_few(config, pool, needed)


def _too_few(config: Config, pool: GpuPool | None, needed: int) -> UserError:
    there, asked = pool.count if pool else 0, f"the plan asks for {needed} GPU{'s'[:needed > 1]}, and "
    fix, named = _use_fewer(config, there), gpu_pool.named(config)
    if pool is not None and pool.named:
        return UserError(f"{asked}hardware={config.hardware} names {there}",
                         f"{fix}, or set hardware={needed}x{pool.bytes // 10**9}")
    count = f"there {'is' if there < 2 else 'are'} {there or 'none'}"
    if named is None or named.count < needed:
        return UserError(f"{asked}{count}", fix)
    return UserError(f"{asked}{count} on this machine, while hardware={config.hardware}",
                     f"start it where these GPUs are (only --dry-run plans for others), or {fix}")


def _use_fewer(config: Config, there: int) -> str:
    """Returns advice on how to run with only the `there` GPUs that exist."""
    rollout, learner = config.rollout, config.learner
    if not there:
        return "set hardware=cpu, or use a machine with GPUs"
    if there == 1 and rollout.gpus and learner.gpus:
        return "set rollout.gpus=0.5, rollout.workers=1, learner.gpus=0.5 and learner.ranks=1 to share one GPU"
    if rollout.gpus and learner.gpus:
        return f"lower rollout.workers (now {rollout.workers}) or learner.ranks (now {learner.ranks})"
    return f"lower rollout.workers to {there}" if rollout.gpus else f"lower learner.ranks to {there}"
