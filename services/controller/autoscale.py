"""Chooses how many rollout workers and environment servers run, between the bounds of `autoscale`. Pure functions.

    role          grows in proportion if                         shrinks by one if
    rollout       tickets wait longer than the target            the wait is below half of it, and one worker is spare
    environment   sessions, latency or 503s exceed the target    one server fewer would stay below half of it

A decision uses the load since the last decision. There is at most one in `autoscale.pause_seconds`: at staleness 0
tickets come in bursts, so one moment shows little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.config.sections import AutoscaleSection, Bounds

LARGEST_STEP = 2.0
"""A role at most doubles at once, because the load was measured on the smaller number of members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLoad:
    """The load of all rollout workers since the last decision."""

    episodes: int
    """Number of episodes that were started, without those of tickets that were played before."""
    wait_seconds: float
    """Mean time in seconds that their tickets waited for a worker with weights that may play them."""
    most_playing: int
    """Highest number of episodes in play at one moment, over all workers."""
    slots: int
    """Number of slots of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLoad:
    """The load of all environment servers since the last decision."""

    requests: int
    """Number of requests that were answered."""
    seconds: float
    """Mean time of a request in seconds."""
    fill: float
    """Highest share of the servers' sessions that were in use at one moment."""
    refused: int
    """Number of request elements that a full server refused."""


def rollout_workers(now: int, load: RolloutLoad, rules: AutoscaleSection) -> int:
    """Returns the wanted number of rollout workers. `now`: the present number."""
    bounds = rules.rollout
    if bounds is None or not load.episodes:
        return within(now, bounds)
    pressure = load.wait_seconds / rules.ticket_wait_seconds
    if pressure > 1:
        return within(_grown(now, pressure), bounds)
    spare = load.most_playing <= (now - 1) * load.slots
    return within(now - (spare and pressure < 0.5), bounds)


def environment_servers(now: int, load: EnvironmentLoad, rules: AutoscaleSection) -> int:
    """Returns the wanted number of environment servers. `now`: the present number."""
    bounds = rules.env
    if bounds is None or not load.requests:
        return within(now, bounds)
    pressure = max(load.fill / rules.session_fill, load.seconds / rules.request_seconds)
    if load.refused:
        pressure = max(pressure, LARGEST_STEP)
    if pressure > 1:
        return within(_grown(now, pressure), bounds)
    spare = now > 1 and pressure * now / (now - 1) < 0.5
    return within(now - spare, bounds)


def _grown(now: int, pressure: float) -> int:
    return math.ceil(now * min(pressure, LARGEST_STEP))


def within(count: int, bounds: Bounds | None) -> int:
    """Returns the number between the bounds that is nearest to `count`."""
    return count if bounds is None else min(max(count, bounds[0]), bounds[1])
