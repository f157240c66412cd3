"""The forecast of a simulated run: its speed, how busy each part is, GPU hours and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lab.simulation.events import Simulation, Totals
from lab.simulation.figures import Figures
from services.config.tree import Config
from services.errors import UserError

WARM = 2
"""Learner steps that are not counted: the first ones fill the queues."""
LONGEST_ROUND = 10
"""Most times that the longer of two intervals is simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Shares are shares of the time: 0.25 is a quarter. GPU hours and cost cover all learner steps of the config."""

    steps_per_hour: float
    learner_idle: float
    """Share in which the learner waits for groups."""
    workers_idle: float
    """Share in which a rollout worker plays nothing."""
    servers_busy: float
    store_busy: float
    controller_busy: float
    gpus: float
    hours: float
    gpu_hours: float
    cost: float


def forecast(config: Config, figures: Figures, *, steps: int, price: float = 0.0, seed: int = 0) -> Forecast:
    """Simulates at least `steps` learner steps of a run after WARM others. `price` is that of one GPU for one hour."""
    history = Simulation(config=config, figures=figures, seed=seed).run(whole_rounds(config, steps) + WARM)
    return forecast_between(config, history[WARM - 1:], price=price)


def whole_rounds(config: Config, least: int) -> int:
    """Returns a number of learner steps that holds evaluations and checkpoints as often as the run does: a multiple of
    both intervals, or all steps of the run if that is less. If the first such multiple is far, it is the multiple of
    the longer interval, up to LONGEST_ROUND times it, that is nearest to one."""
    rare = [every for every in (config.eval.every, config.checkpoint.every) if 0 < every < config.steps]
    longer = max(rare, default=1)

    def off(times: int) -> float:
        return sum(abs(math.remainder(times * longer, every)) for every in rare) / times

    round_of_both = longer * min(range(1, LONGEST_ROUND + 1), key=off)
    return min(round_of_both * math.ceil(least / round_of_both), max(least, config.steps))


def forecast_between(config: Config, history: Sequence[Totals], *, price: float) -> Forecast:
    """Returns the forecast for all steps of the config, at the rates between the first and the last of the totals.

    Raises UserError for times of parts from which no rate can be made.
    """
    first, last = history[0], history[-1]
    seconds = last.time - first.time
    if not 0 < seconds < math.inf:
        raise UserError(f"by these times of its parts a learner step takes {seconds:g} s", "correct the times")
    rollout, learner = config.rollout, config.learner
    servers = len(config.env.urls) or config.env.servers
    gpus = rollout.workers * rollout.reserved_gpus + learner.ranks * learner.gpus
    hours = config.steps * seconds / (last.step - first.step) / 3600
    return Forecast(
        steps_per_hour=config.steps / hours,
        learner_idle=(last.learner_waits - first.learner_waits) / seconds,
        workers_idle=max(0.0, 1 - (last.workers_busy - first.workers_busy) / seconds / rollout.workers),
        servers_busy=(last.servers_busy - first.servers_busy) / seconds / servers,
        store_busy=(last.store_busy - first.store_busy) / seconds,
        controller_busy=(last.controller_busy - first.controller_busy) / seconds,
        gpus=gpus, hours=hours, gpu_hours=gpus * hours, cost=gpus * hours * price)
