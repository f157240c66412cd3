"""Turns the groups of a learner step into rows with credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from learner.credit.registry import estimator, options_of
from learner.credit.returned_credit import check_credit
from learner.credit.state_keys import keys_of_group
from learner.credit.types import Credit, CreditStep, nested
from learner.rows.judge import Judgements
from learner.rows.packing import Floats, Rows, make_rows
from services.config.credit import CreditSection
from services.records import Episode, Version

Groups = Sequence[Sequence[Episode]]
"""Complete groups in training order; the episodes of each in order of k."""


def assign_credit(groups: Groups, options: CreditSection) -> list[Credit]:
    """One credit per group.

    Raises UserError for an unknown estimator or option, and ValueError for an episode without steps.
    """
    chosen, options = estimator(options.estimator), options_of(options)
    credits = chosen.batch([chosen.group(credit_steps(group, options), options) for group in groups], options)
    check_credit(credits, [[episode.steps for episode in group] for group in groups], options.estimator)
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


def rows_of(groups: Groups, credits: Sequence[Credit], *, policy_step: int, incarnation: int | None = None,
            beside: Sequence[Judgements] | None = None) -> Rows:
    """Returns all steps of all episodes, group by group and never shuffled: a minibatch has consecutive episodes.

    `beside`: judgements of each episode, which follow its steps, so that every minibatch has its share of them.
    Steps of a conversation that continue one another share a sequence. A row is stale if a policy older than
    `policy_step` sampled any of its tokens, or one of another `incarnation` of the learner, if that is given.
    """
    def stale(version: Version) -> bool:
        return version.step < policy_step or (incarnation is not None and version.incarnation != incarnation)

    episodes = [episode for group in groups for episode in group]
    own = (zip(episode.steps, row, strict=True) for episode, row in zip(
        episodes, (row for credit in credits for row in credit.advantages), strict=True))
    parts = [[*steps, *more] for steps, more in zip(own, beside or [()] * len(episodes), strict=True)]
    steps = [step for part in parts for step, _ in part]
    starts = np.cumsum([0, *map(len, parts)])
    return make_rows(
        steps,
        advantages=[advantage for part in parts for _, advantage in part],
        temperatures=[episode.ticket.temperature for episode, part in zip(episodes, parts, strict=True) for _ in part],
        stale=[any(stale(span.version) for span in step.spans) for step in steps],
        follows=[None if step.follows is None else int(start) + step.follows
                 for start, part in zip(starts, parts, strict=False) for step, _ in part],
        ends=[row >= len(episode.steps) - 1
              for episode, part in zip(episodes, parts, strict=True) for row in range(len(part))],
    )


def step_mask(groups: Groups, beside: Sequence[Judgements]) -> npt.NDArray[np.bool_]:
    """Returns a mask over the rows of rows_of, bool [N]: True for steps, False for judgements (`beside`)."""
    episodes = [episode for group in groups for episode in group]
    return np.array([row < len(episode.steps) for episode, more in zip(episodes, beside, strict=True)
                     for row in range(len(episode.steps) + len(more))])


def with_advantages(credits: Sequence[Credit], advantages: Floats) -> list[Credit]:
    """Returns the credits with these advantages of all steps [N], in the order of rows_of."""
    ends = np.cumsum([sum(map(len, credit.advantages)) for credit in credits])[:-1]
    return [replace(credit, advantages=nested(part, credit.advantages))
            for credit, part in zip(credits, np.split(advantages, ends), strict=True)]
