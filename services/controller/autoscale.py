"""Chooses how many rollout workers and environment servers run, between the bounds of `autoscale`. Pure.

    role          more, in proportion                             fewer, one at a time
    rollout       tickets waited for longer than the target       they hardly waited, and one fewer has the slots
    environment   sessions, latency or 503s are above the target  one fewer would stay below half of it

A decision is made on what was seen since the last one, at most once in `autoscale.pause_seconds`: at staleness 0
tickets come in bursts, so a single moment says little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.config.autoscale import AutoscaleSection, Bounds

LARGEST_STEP = 2.0
"""A role at most doubles at once: what is measured while it grows is of the smaller one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLoad:
    """Rollout workers since the last decision."""

    episodes: int
    """Episodes that were started."""
    wait_seconds: float
    """Mean wait of their tickets."""
    most_playing: int
    """Most episodes in play at one moment, over all workers."""
    slots: int
    """Slots of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLoad:
    """Environment servers since the last decision."""

    requests: int
    """Requests that were answered."""
    seconds: float
    """Mean time of a request."""
    fill: float
    """Sessions over the sessions that the servers could hold, at its highest."""
    refused: int
    """Elements refused because a server was full."""


def rollout_workers(now: int, load: RolloutLoad, rules: AutoscaleSection) -> int:
    """Returns the number of rollout workers that is wanted; `now` is the present one."""
    bounds = rules.rollout
    if bounds is None or not load.episodes:
        return _within(now, bounds)
    pressure = load.wait_seconds / rules.ticket_wait_seconds
    if pressure > 1:
        return _within(_grown(now, pressure), bounds)
    spare = load.most_playing <= (now - 1) * load.slots
    return _within(now - (spare and pressure < 0.5), bounds)


def environment_servers(now: int, load: EnvironmentLoad, rules: AutoscaleSection) -> int:
    """Returns the number of environment servers that is wanted; `now` is the present one."""
    bounds = rules.env
    if bounds is None or not load.requests:
        return _within(now, bounds)
    pressure = max(load.fill / rules.session_fill, load.seconds / rules.request_seconds)
    if load.refused:
        pressure = max(pressure, LARGEST_STEP)
    if pressure > 1:
        return _within(_grown(now, pressure), bounds)
    spare = now > 1 and pressure * now / (now - 1) < 0.5
    return _within(now - spare, bounds)


def _grown(now: int, pressure: float) -> int:
    return math.ceil(now * min(pressure, LARGEST_STEP))


def _within(count: int, bounds: Bounds | None) -> int:
    return count if bounds is None else min(max(count, bounds[0]), bounds[1])
