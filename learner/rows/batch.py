"""Makes the rows of a learner step from its groups with their credit and from demonstrations, and archive columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.cold_start.sft_data import TokenRow
from learner.credit.checks import check_credit
from learner.credit.registry import estimator, options_of
from learner.credit.state_keys import keys_of_group
from learner.credit.types import Credit, CreditStep, nested
from learner.rows.judge import Judgements
from learner.rows.packing import Floats, Rows, make_rows
from services.config.sections import CreditSection
from services.records import Episode, Version

Groups = Sequence[Sequence[Episode]]
"""Complete groups in training order; the episodes of each in order of k."""


def assign_credit(groups: Groups, options: CreditSection) -> list[Credit]:
    """Returns one credit per group.

    Raises UserError for an unknown estimator or option, and as check_credit does, and ValueError for an episode without
    steps.
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
            judged: Sequence[Judgements] | None = None) -> Rows:
    """Returns all steps of all episodes, group by group and never shuffled: a minibatch has consecutive episodes.

    `judged`: the judgements of each episode. They follow its steps, so that every minibatch has its share of them.
    Steps of a conversation that continue one another share a sequence. A row is stale if a policy older than
    `policy_step` sampled any of its tokens, or one of another `incarnation` of the learner, if that is given.
    """
    def stale(version: Version) -> bool:
        return version.step < policy_step or (incarnation is not None and version.incarnation != incarnation)

    episodes = [episode for group in groups for episode in group]
    own = (zip(episode.steps, row, strict=True) for episode, row in zip(
        episodes, (row for credit in credits for row in credit.advantages), strict=True))
    parts = [[*steps, *more] for steps, more in zip(own, judged or [()] * len(episodes), strict=True)]
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


def step_mask(groups: Groups, judged: Sequence[Judgements]) -> npt.NDArray[np.bool_]:
    """Returns a mask over the rows of rows_of, bool [N]: True for steps, False for judgements (`judged`)."""
    episodes = [episode for group in groups for episode in group]
    return np.array([row < len(episode.steps) for episode, more in zip(episodes, judged, strict=True)
                     for row in range(len(episode.steps) + len(more))])


def with_advantages(credits: Sequence[Credit], advantages: Floats) -> list[Credit]:
    """Returns the credits with these advantages of all steps [N], in the order of rows_of."""
    ends = np.cumsum([sum(map(len, credit.advantages)) for credit in credits])[:-1]
    return [replace(credit, advantages=nested(part, credit.advantages))
            for credit, part in zip(credits, np.split(advantages, ends), strict=True)]


def rows_to_learn(batch: Sequence[TokenRow], *, prompts: bool) -> Rows:
    """Returns demonstrated rows as rows of the learner. Their responses are the tokens to learn: the answers, and with
    `prompts` also all but the first token of each prompt with `learn_prompt`."""
    lengths = np.array([len(row.ids) for row in batch])
    begins = np.array([1 if prompts and row.learn_prompt else max(1, row.prompt_tokens) for row in batch])
    n, tokens = len(batch), int((lengths - begins).sum())
    return Rows(
        tokens=np.concatenate([row.ids for row in batch]), sequence=np.arange(n), prompt_lengths=begins,
        response_lengths=lengths - begins, sampler_logprobs=np.zeros(tokens, dtype=np.float32),
        advantages=np.zeros(n), temperatures=np.ones(n), stale=np.zeros(n, dtype=np.bool_),
        ends=np.ones(n, dtype=np.bool_))


def demonstrations_at(demonstrations: Sequence[TokenRow], step: int, *, count: int, seed: int) -> list[TokenRow]:
    """Returns the `count` rows of learner step `step`, counted from 1. Pure.

    Steps take consecutive parts of an endless sequence of epochs. An epoch has every row once, in a random order.
    """
    total, start = len(demonstrations), (step - 1) * count
    epochs = range(start // total, (start + count - 1) // total + 1)
    orders = np.concatenate([np.random.default_rng([seed, epoch]).permutation(total) for epoch in epochs])
    first = start - epochs[0] * total
    return [demonstrations[place] for place in orders[first:first + count]]


def credit_columns(credit: Credit, k: int) -> dict[str, Sequence[Any]]:
    """Returns the archive's credit columns of episode k, without columns that the estimator does not compute."""
    columns: dict[str, Sequence[Any]] = {
        "advantage": credit.advantages[k], "raw_advantage": credit.raw_advantages[k], "return": credit.returns[k],
        "state_key": credit.states[k]}
    if credit.values is not None:
        columns["value"] = [credit.values[state][0] for state in credit.states[k]]
    if credit.deltas is not None:
        columns["delta"] = credit.deltas[k]
    if credit.baselines is not None:
        columns["baseline"] = credit.baselines[k]
    return columns
