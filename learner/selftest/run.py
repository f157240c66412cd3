"""The self-test of the learner: its checks, one after another.

`candidates` compares the current layers with changes that could make training faster, none of which is a setting of
gagpo: Liger's kernels and 8-bit Adam, if their packages are installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from learner.cold_start.rank_training import imitator, train_on_ranks
from learner.cold_start.sft import Budget, SftProgress
from learner.cold_start.sft_data import TokenRow
from learner.model.attention import takes_varlen
from learner.model.policy import Policy, empty_policy
from learner.rank_group import RankGroup
from learner.selftest.checks import Checks, planned_bytes
from learner.selftest.scene import GPU, TINY, Scene, config, groups, write_model
from learner.selftest.table import Line, attempt
from services.amounts import GIB, rounded
from services.config.sections import SftSection

TOP_N = 12
"""Number of operations that are shown, the slowest first."""
UPDATES = 10
"""Updates of the cold start."""


def candidates(checks: Checks) -> Iterator[Line]:
    """Measures forward and backward of one pack in bfloat16: as it is, with Liger; then smaller optimizers."""
    if not checks.gauge.cuda:
        yield Line(name="candidates", value="not measured on a CPU")
        return
    plain = _speed(checks, lambda policy: policy)
    yield Line(name="layers as they are", value=f"{plain:,.0f} tokens/s forwards and backwards")
    if _module("liger_kernel.transformers") is None:
        yield Line(name="candidate: Liger kernels", value="not installed")
    else:
        liger = _speed(checks, _with_liger)
        yield Line(name="candidate: Liger kernels", value=f"{liger:,.0f} tokens/s",
                   aim=f"{100 * (liger / plain - 1):+.0f}% against the layers as they are")
    for package, name in (("torchao.optim", "AdamW8bit"), ("bitsandbytes.optim", "AdamW8bit")):
        module = _module(package)
        if module is None:
            yield Line(name=f"candidate: 8-bit Adam of {package.partition('.')[0]}", value="not installed")
        else:
            yield _optimizer(checks, package.partition(".")[0], getattr(module, name))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _policy(checks: Checks) -> Policy:
    checks.gauge.fresh()
    policy, weights = empty_policy(checks.folder)
    weights.fill(policy, checks.rank_group.device, torch.bfloat16)
    return policy.to(checks.rank_group.device)


def _speed(checks: Checks, change: Callable[[Policy], Policy]) -> float:
    """Returns the tokens per second, forwards and backwards, over a pack of the smallest size."""
    policy = change(_policy(checks))
    rows = max(1, checks.scene.packs[0] // checks.scene.row)
    pack = checks.pack(rows, grid=not takes_varlen(checks.rank_group.device, half=True))

    def work() -> None:
        logp, _ = policy(pack)
        logp.sum().backward()
        policy.zero_grad()

    return pack.tokens.shape[1] / checks.gauge.seconds(work, warm=2)


def _with_liger(policy: Policy) -> Policy:
    """Replaces norms, rotary embeddings and feed-forward layers of an existing model by Liger's."""
    _module("liger_kernel.transformers").apply_liger_kernel_to_qwen2(
        rope=True, rms_norm=True, swiglu=True, cross_entropy=False, fused_linear_cross_entropy=False, model=policy.hf)
    return policy


def _optimizer(checks: Checks, package: str, make: Callable[..., torch.optim.Optimizer]) -> Line:
    """Measures seconds and bytes of one update."""
    policy = _policy(checks)
    parameters: list[Tensor] = list(policy.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer = make(parameters, lr=1e-6)
    before = checks.gauge.peak()
    seconds = checks.gauge.seconds(optimizer.step)
    after = checks.gauge.peak()
    more = f", {(after - before) / GIB:.1f} GiB more" if after is not None and before is not None else ""
    return Line(name=f"candidate: 8-bit Adam of {package}", value=f"{seconds:.2f} s an update{more}")


def operations(checks: Checks) -> Iterator[Line]:
    """Profiles one step after another one. An operation's time is that of the kernels that it starts itself."""
    tokens, cuda = checks.scene.packs[-1], checks.gauge.cuda
    learner, batch = checks.learner(tokens), groups(checks.scene, checks.step_rows(tokens))
    learner.train(batch)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as profiled:
        start = checks.gauge.now()
        learner.train(batch)
        seconds = checks.gauge.now() - start
    times: dict[str, float] = {
        event.key: event.self_device_time_total if cuda else event.self_cpu_time_total
        for event in profiled.key_averages()
        if event.device_type.name == "CPU"}
    yield Line(name="a step under the profiler", value=f"{seconds:.2f} s, the device busy for "
                                                       f"{sum(times.values()) / 1e4 / seconds:.0f}%")
    for name, time in sorted(times.items(), key=lambda item: -item[1])[:TOP_N]:
        yield Line(name=f"  {name[:38]}", value=f"{time / 1e3:.1f} ms, {time / 1e4 / seconds:.1f}%")


def imitation(checks: Checks) -> Iterator[Line]:
    """Imitates two packs of random rows again and again, whose loss has to fall: speed, memory, first and last loss."""
    scene, tokens = checks.scene, checks.scene.packs[0]
    count = max(2, 2 * tokens // scene.row)
    rng, sft = np.random.default_rng(0), SftSection(batch_rows=count, lr=1e-3, prompt_loss=0.0)
    rows = [TokenRow(ids=rng.integers(0, scene.model["vocab_size"], scene.row, dtype=np.int32),
                     prompt_tokens=scene.prompt) for _ in range(count)]
    checks.gauge.fresh()
    learner = imitator(config(tokens, checks.rank_group.device).model_copy(update={"sft": sft}), checks.folder,
                       checks.rank_group)
    reports: list[SftProgress] = []
    train_on_ranks(learner, rows, sft, budget=Budget(updates=UPDATES), seed=0, report=reports.append)
    # Each report is a mean over the updates so far, so the last loss is the difference of two sums.
    first = reports[0].loss_response / scene.response
    sums = [count * each.loss_response for count, each in ((UPDATES, reports[-1]), (UPDATES - 1, reports[-2]))]
    last = (sums[0] - sums[1]) / scene.response
    held = checks.gauge.peak()
    yield Line(name="cold start on a rank", aim="a lower loss", passed=last < first,
               value=f"{first:.2f} -> {last:.2f} nats a token, {rounded(count * UPDATES / reports[-1].seconds)} rows/s"
               + (f", {held / GIB:.1f} GiB (plan {planned_bytes(learner) / GIB:.1f})" if held is not None else ""))


CHECKS: dict[str, Callable[[Checks], Iterator[Line]]] = {
    "device": Checks.device, "steps": Checks.steps, "numerics": Checks.numerics, "attention": Checks.attention,
    "compile": Checks.compiled, "lora": Checks.adapters, "cold-start": imitation,
    "offload": Checks.offload, "parking": Checks.host_offload, "candidates": candidates, "operations": operations,
    "save": Checks.persistence}
"""The checks in their order. The first one measures the rate that others compare with; the last one takes as long as
the disk."""


def run(folder: Path, scene: Scene | None = None, *, names: Iterable[str] = CHECKS) -> Iterator[Line]:
    """Yields the lines of the table as they are measured. Files go into `folder`, an empty one.

    `scene`: the sizes; by default those of a GPU if there is one, else tiny ones on the CPU. `names`: the checks
    that run after the first one.
    """
    cuda = torch.cuda.is_available()
    rank_group = RankGroup(0, 1, gpu=cuda)
    try:
        sizes = scene or (GPU if cuda else TINY)
        checks = Checks(sizes, write_model(sizes, folder / "model", rank_group.device), rank_group)
        for name in dict.fromkeys(("device", *names)):
            yield from attempt(name, partial(CHECKS[name], checks))
    finally:
        rank_group.leave()
