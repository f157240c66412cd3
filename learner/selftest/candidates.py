"""Measures changes that could make training faster, against the present layers. None is a setting of gagpo yet.

Liger's kernels and 8-bit Adam, if their packages are installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from learner.model.attention import takes_varlen
from learner.model.policy import Policy, empty_policy
from learner.selftest.checks import Checks
from learner.selftest.table import Line
from services.units import GIB


def candidates(checks: Checks) -> Iterator[Line]:
    """Measures forward and backward of one pack in bfloat16: as it is, with Liger; then smaller optimizers."""
    if not checks.gauge.cuda:
        yield Line(name="candidates", found="not measured on a CPU")
        return
    plain = _speed(checks, lambda policy: policy)
    yield Line(name="layers as they are", found=f"{plain:,.0f} tokens/s forwards and backwards")
    if _module("liger_kernel.transformers") is None:
        yield Line(name="candidate: Liger kernels", found="not installed")
    else:
        liger = _speed(checks, _with_liger)
        yield Line(name="candidate: Liger kernels", found=f"{liger:,.0f} tokens/s", aim=_gain(liger, plain))
    for package, name in (("torchao.optim", "AdamW8bit"), ("bitsandbytes.optim", "AdamW8bit")):
        module = _module(package)
        if module is None:
            yield Line(name=f"candidate: 8-bit Adam of {package.partition('.')[0]}", found="not installed")
        else:
            yield _optimizer(checks, package.partition(".")[0], getattr(module, name))


def _gain(found: float, plain: float) -> str:
    return f"{100 * (found / plain - 1):+.0f}% against the layers as they are"


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
    """Returns the tokens per second, forwards and backwards, over a pack of the middle size."""
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
    held = f", {(after - before) / GIB:.1f} GiB more" if after is not None and before is not None else ""
    return Line(name=f"candidate: 8-bit Adam of {package}", found=f"{seconds:.2f} s an update{held}")
