"""Measures which operations take the device's time in one step with the largest packs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.profiler import ProfilerActivity, profile

from learner.selftest.checks import Checks
from learner.selftest.scene import groups
from learner.selftest.table import Line

SHOWN = 12
"""Number of operations that are shown, those that take most."""


def operations(checks: Checks) -> Iterator[Line]:
    """Profiles one step after another one. An operation's time is that of the kernels that it starts itself."""
    tokens, cuda = checks.scene.packs[-1], checks.gauge.cuda
    learner, batch = checks.learner(tokens), groups(checks.scene, checks.step_rows(tokens))
    learner.train(batch)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as found:
        start = checks.gauge.now()
        learner.train(batch)
        seconds = checks.gauge.now() - start
    times: dict[str, float] = {
        event.key: _microseconds(event, cuda=cuda) for event in found.key_averages()
        if event.device_type.name == "CPU"}
    yield Line(name="a step under the profiler", found=f"{seconds:.2f} s, the device busy for "
                                                       f"{sum(times.values()) / 1e4 / seconds:.0f}%")
    for name, time in sorted(times.items(), key=lambda item: -item[1])[:SHOWN]:
        yield Line(name=f"  {name[:38]}", found=f"{time / 1e3:.1f} ms, {time / 1e4 / seconds:.1f}%")


def _microseconds(event: Any, *, cuda: bool) -> float:
    return event.self_device_time_total if cuda else event.self_cpu_time_total
