"""Tries an estimator of the user's own on a made-up learner step, before a run starts: its mistakes would otherwise
show after the cold start, at the first learner step, and those in its explanations in `gagpo explore` after the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan

from learner.credit.estimator import Estimator
from learner.credit.registry import estimator, options_of
from learner.credit.returned_credit import check_credit
from learner.credit.returned_texts import explanation_of, legend_of
from learner.credit.types import Credit, CreditStep, Group
from services.config.credit import CreditSection
from services.errors import UserError
from services.process.own_code import as_user_error

_LENGTHS = (2, 3, 1)
"""Steps of the episodes of a group, in turn."""


def try_estimator(section: CreditSection, size: int) -> None:
    """Raises UserError if the estimator fails on groups of `size` episodes, returns no credit of their form or another
    one each time, or fails to explain it.

    The groups are one with a win, one without, and one of wins alone.
    """
    name = section.estimator
    chosen, options = estimator(name), options_of(section)
    credits = _credits(chosen, _groups(size), options)
    # A run makes the estimator anew at each learner step, and takes a step again after a death.
    if any(_credits(again, _groups(size), options) != credits for again in (chosen, estimator(name))):
        raise UserError(f"the estimator {name} returned other numbers for the same groups",
                        "keep nothing between calls, and seed what is random")
    legend_of(options)
    for group, credit in zip(_groups(size), credits, strict=True):
        for episode in range(size):
            explanation_of(group, _archived(credit), options, episode)


def _groups(size: int) -> list[list[list[CreditStep]]]:
    """Returns the made-up groups, with lists of their own as a run has them for each call."""
    return [_group(size, wins) for wins in (1, 0, size)]


def _credits(chosen: Estimator, groups: Sequence[Group], options: CreditSection) -> list[Credit]:
    """Returns one credit for each group. Raises UserError if the estimator fails, or returns anything else."""
    name, lengths = options.estimator, [[range(len(episode)) for episode in group] for group in groups]
    with as_user_error(f"the estimator {name} failed on a made-up group", f"fix {name.partition(':')[0]}"):
        credits = chosen.batch([chosen.group(group, options) for group in groups], options)
    check_credit(credits, lengths, name)
    return credits


def _archived(credit: Credit) -> Credit:
    """Returns the credit as the explorer reads it from an archive: values by step alone, and nan for absent numbers."""
    absent = [[nan] * len(row) for row in credit.states]
    values = credit.values and [[credit.values[state][0] for state in row] for row in credit.states]
    return replace(credit, values=None, baselines=credit.baselines or values or absent, deltas=credit.deltas or absent,
                   tokens=None)


def _group(size: int, wins: int) -> list[list[CreditStep]]:
    """Returns `size` episodes that all begin in one state. The first `wins` of them earn 1 at their last step."""
    return [[CreditStep(state=f"state {t}", reward=float(k < wins and t == length - 1), tokens=1, action="go",
                        invalid=k == size - 1)
             for t in range(length)] for k, length in zip(range(size), _LENGTHS * size, strict=False)]
