"""Turns the groups of a learner step into rows with credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from learner.credit.registry import estimator, options_of
from learner.credit.state_keys import keys_of_group
from learner.credit.types import Credit, CreditStep, nested
from learner.packing import Floats, Rows, make_rows
from services.config.credit import CreditSection
from services.errors import UserError
from services.records import Episode, Version

Groups = Sequence[Sequence[Episode]]
"""Complete groups in training order; the episodes of each in order of k."""


def assign_credit(groups: Groups, options: CreditSection) -> list[Credit]:
    """One credit per group.

    Raises UserError for an unknown estimator or option, and ValueError for an episode without steps.
    """
    chosen, options = estimator(options.estimator), options_of(options)
    credits = chosen.batch([chosen.group(credit_steps(group, options), options) for group in groups], options)
    for group, credit in zip(groups, credits, strict=True):
        if [len(row) for row in credit.advantages] != [len(episode.steps) for episode in group]:
            raise UserError(f"the estimator {options.estimator} returned another number of advantages than there are "
                            "steps", "return one number for each step, [episode][step]")
    return credits


def credit_steps(group: Sequence[Episode], options: CreditSection) -> list[list[CreditStep]]:
    """Returns the episodes of a group as input of estimators. Raises ValueError for an episode without steps."""
    for episode in group:
        if not episode.steps:
            raise ValueError(f"episode {episode.ticket.id} has no steps")
    keys = keys_of_group(group, options)
    return [_credit_steps(*episode) for episode in zip(group, keys.steps, keys.cut_in, strict=True)]


def _credit_steps(episode: Episode, states: Sequence[str], cut_in: str | None) -> list[CreditStep]:
    last = len(states) - 1
    return [CreditStep(state=state, reward=step.reward, invalid=not step.valid, tokens=len(step.response_ids),
                       action=step.action, admissible=step.admissible, tag=step.tag,
                       cut_in=cut_in if t == last else None)
            for t, (step, state) in enumerate(zip(episode.steps, states, strict=True))]


def rows_of(groups: Groups, credits: Sequence[Credit], *, policy_step: int, incarnation: int | None = None) -> Rows:
    """Returns all steps of all episodes, group by group and never shuffled: a minibatch has consecutive episodes.

    Steps of a conversation that continue one another share a sequence. A row is stale if a policy older than
    `policy_step` sampled any of its tokens, or one of another `incarnation` of the learner, if that is given.
    """
    def stale(version: Version) -> bool:
        return version.step < policy_step or (incarnation is not None and version.incarnation != incarnation)

    episodes = [episode for group in groups for episode in group]
    steps = [step for episode in episodes for step in episode.steps]
    starts = np.cumsum([0, *(len(episode.steps) for episode in episodes)])
    return make_rows(
        steps,
        advantages=[a for credit in credits for row in credit.advantages for a in row],
        temperatures=[episode.ticket.temperature for episode in episodes for _ in episode.steps],
        stale=[any(stale(span.version) for span in step.spans) for step in steps],
        follows=[None if step.follows is None else int(start) + step.follows
                 for start, episode in zip(starts, episodes, strict=False) for step in episode.steps],
        ends=[step is episode.steps[-1] for episode in episodes for step in episode.steps],
    )


def with_advantages(credits: Sequence[Credit], advantages: Floats) -> list[Credit]:
    """Returns the credits with these advantages [N], in the order of rows_of."""
    ends = np.cumsum([sum(map(len, credit.advantages)) for credit in credits])[:-1]
    return [replace(credit, advantages=nested(part, credit.advantages))
            for credit, part in zip(credits, np.split(advantages, ends), strict=True)]
