"""Rows of a trainer's batch that are steps, and the advantages of such a batch.

Registries of advantage estimators hand over rewards, a mask and the id of each row's group, and nothing else. So the id
carries what step-level credit needs: StepUid is the group's id, a text as before, that knows which step its row is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from gagpo.integrations.segments import segments
from learner.credit.registry import ESTIMATORS, estimator, unread
from learner.credit.state_keys import LISTED_KEY
from learner.logged_groups.form import (
    LARGEST_LOGGED_REWARD,
    LoggedEpisode,
    LoggedGroup,
    LoggedStep,
    check_fields,
    credit_of,
    credit_options,
)
from services.amounts import number_of
from services.config.sections import CreditSection
from services.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Advantages = Callable[..., "tuple[Tensor, Tensor]"]
STEP_LEVEL = tuple(name for name, each in ESTIMATORS.items()
                   if not each.needs_critic and not each.needs_tokens
                   and "state_key" in each.reads(each.Options(estimator=name)))
"""Names of the estimators that compare steps by their states. No trainer has them under these names."""


class StepUid(str):
    """The id of a row's group that also says which step of which episode the row is.

    It equals, hashes and prints as the id alone, so that estimators of the trainer still group by it. Raises UserError
    for an observation that is no text, such as a list of messages, and for a turn that is no whole number.
    """

    __slots__ = ("action", "episode", "invalid", "observation", "turn")

    episode: str
    """Id of the episode, different from all other episodes of the group."""
    turn: int
    """Place of the step in its episode, from 0."""
    observation: str
    """The text before the action. Steps of a group with the same text share a value."""
    invalid: bool
    """Whether the output was malformed, which the penalty touches."""
    action: str | None
    """The action, which `adastep` compares. Other estimators do not need it."""

    def __new__(cls, group: str, episode: str, turn: int, observation: str, *, invalid: bool = False,
                action: str | None = None) -> StepUid:
        uid = super().__new__(cls, group)
        if not isinstance(cast("object", observation), str):
            raise UserError(f"the observation of turn {turn} is {observation!r:.60}, which is no text",
                            "give the text before the action")
        uid.episode, uid.turn, uid.observation = str(episode), _whole(turn, episode), observation
        uid.invalid, uid.action = invalid, action
        return uid

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns the parts for pickle, by which rows travel between processes."""
        made = partial(StepUid, invalid=self.invalid, action=self.action)
        return made, (str(self), self.episode, self.turn, self.observation)


def _whole(turn: Any, episode: str) -> int:
    """Returns a turn as an int. It may be a number of another library. Raises UserError if it is no whole number."""
    with suppress(TypeError, ValueError, OverflowError):
        if (number := int(turn)) == turn:
            return number
    raise UserError(f"a turn of the episode {episode} is {turn!r:.60}", "count turns from 0, in whole numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStep:
    """One step as the tokens of a trainer's row."""

    prompt: Sequence[int]
    response: Sequence[int]
    mask: Sequence[int]
    """1 for each token of the response that the model sampled, 0 for the others, which follow those."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The rollout's own `observation`, `action` or `invalid` of StepUid, in place of the tokens' text."""


def step_uids(group: str, episode: str, steps: Sequence[TokenStep], tokenizer: Any) -> list[StepUid]:
    """Returns the id of each row of an episode, [T], whose rows are in the order of its steps.

    An observation is what the model reads since its last answer, and an entire prompt that does not continue the row
    before. `tokenizer`: the trainer's, which decodes tokens. Raises UserError for a response without sampled tokens or
    with several runs of them, and as StepUid does.
    """
    def text(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True)

    uids: list[StepUid] = []
    read: list[int] = []
    for turn, step in enumerate(steps):
        runs = segments(step.mask)
        if len(runs) != 1:
            raise UserError(f"turn {turn} of the episode {episode} has {number_of(len(runs), 'run')} of sampled tokens",
                            "give one row for each answer of the model, and a mask that shows it")
        (start, end), prompt, response = runs[0], list(step.prompt), list(step.response)
        new = prompt[len(read):] if prompt[:len(read)] == read else prompt
        parts: dict[str, Any] = {
            "observation": text(new + response[:start]), "action": text(response[start:end]).strip()}
        parts |= {name: step.fields[name] for name in ("observation", "action", "invalid") if name in step.fields}
        uids.append(StepUid(group, episode, turn, **parts))
        read = prompt + response[:end]
    return uids


def step_advantages(uids: Sequence[str], rewards: Sequence[float], options: CreditSection) -> list[float]:
    """Returns the advantage of each row, [N]. The rows may have any order.

    `uids`: a StepUid for each row. `rewards`: what each step alone earned, not its episode. A row that repeats another
    one's step, as trainers do to fill a batch, gets the same advantage and counts once. Raises UserError for a row
    whose id is no StepUid or lacks the action that the estimator compares, for a reward that is no finite number or
    above LARGEST_LOGGED_REWARD, for two rows of one turn that differ, and for an episode that lacks a turn.
    """
    rows: dict[str, dict[str, dict[int, LoggedStep]]] = {}
    for uid, reward in zip(uids, rewards, strict=True):
        if not isinstance(uid, StepUid):
            raise UserError(f"the group id {uid!r} of a row does not say which step the row is",
                            "make it a gagpo.integrations.steps.StepUid")
        where = f"turn {uid.turn} of the episode {uid.episode}"
        if not abs(reward) <= LARGEST_LOGGED_REWARD:  # NaN is not, either
            raise UserError(f"{where} has the reward {reward:g}",
                            f"correct the function that gives it: a reward is a number up to {LARGEST_LOGGED_REWARD:g}")
        step = LoggedStep(state=uid.observation, reward=float(reward), invalid=uid.invalid, action=uid.action)
        check_fields([(where, step)], options.estimator)
        first = rows.setdefault(str(uid), {}).setdefault(uid.episode, {}).setdefault(uid.turn, step)
        if not _repeats(step, first):
            raise UserError(f"{where} is there twice, and differs", "give each episode of a group an id of its own")
    rows = {group: dict(sorted(episodes.items())) for group, episodes in rows.items()}  # clusters depend on the order
    credits = credit_of([_group(group, episodes) for group, episodes in rows.items()], options)
    advantages = {(group, episode): row for (group, episodes), credit in zip(rows.items(), credits, strict=True)
                  for episode, row in zip(episodes, credit.advantages, strict=True)}
    return [advantages[str(uid), uid.episode][uid.turn] for uid in uids if isinstance(uid, StepUid)]


def _repeats(step: LoggedStep, first: LoggedStep) -> bool:
    """Whether a row repeats another one's step. A trainer may compute the reward of a copy again (with a KL term), and
    then it differs by rounding."""
    return (replace(step, reward=0.0) == replace(first, reward=0.0)
            and math.isclose(step.reward, first.reward, rel_tol=0.01, abs_tol=0.01))


def _group(name: str, episodes: dict[str, dict[int, LoggedStep]]) -> LoggedGroup:
    for episode, steps in episodes.items():
        if missing := set(range(len(steps))) - steps.keys():
            raise UserError(f"episode {episode} of group {name} has {number_of(len(steps), 'step')} and no turn "
                            f"{min(missing)}",
                            "count turns from 0, and give all steps of an episode in one batch")
    return LoggedGroup(id=name, episodes=[LoggedEpisode(steps=[steps[t] for t in range(len(steps))])
                                          for steps in episodes.values()])


def advantage_function(name: str, given: dict[str, Any]) -> Advantages:
    """Returns the function that registries take: (token_level_rewards [N, T], response_mask [N, T], index [N], ...) ->
    advantages and returns, [N, T] each, both the step's advantage at each of its response tokens.

    A row's reward is the sum of its token rewards. A row without a response token whose id is no StepUid fills the
    trainer's batch: it gets 0 and belongs to no group. Raises UserError for an unknown estimator or option, and for an
    option that needs what rows do not have.
    """
    options = credit_options({"estimator": name, **given})
    refuse_unsaid(options, "rows", "the observation of StepUid")
    idle = unread(options, given)

    def advantages(token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[str],
                   **_: object) -> tuple[Tensor, Tensor]:
        for key, why in idle.items():  # not before: several estimators are registered with the same options
            warnings.warn(f"{key} does nothing {why}", stacklevel=2)
        filled = response_mask.sum(dim=-1).tolist()
        rows = [i for i, uid in enumerate(index) if filled[i] or isinstance(uid, StepUid)]
        rewards = token_level_rewards.sum(dim=-1).tolist()
        steps = token_level_rewards.new_zeros(len(rewards))
        steps[rows] = steps.new_tensor(step_advantages([index[i] for i in rows], [rewards[i] for i in rows], options))
        tokens = steps[:, None] * response_mask
        return tokens, tokens.clone()

    return advantages


def check_trainer(package: str, tried: str, name: str) -> None:
    """Raises UserError for a version of a trainer other than `tried`, whose private methods are overridden, and for an
    estimator that is not ours, which would take each step for an episode. `name`: the estimator's."""
    if not (installed := version(package)).startswith(f"{tried}."):
        raise UserError(f"{package} {installed} is installed, and this was tried with {tried}",
                        f"pip install '{package}=={tried}.*'")
    if name not in STEP_LEVEL:
        raise UserError(f"the estimator {name} of {package} takes steps for episodes",
                        f"choose one of {', '.join(STEP_LEVEL)}")


def refuse_unsaid(options: CreditSection, source: str, place: str) -> None:
    """Raises UserError for an option that would do nothing, because a trainer does not have what it reads.

    `source`: what the trainer has in place of a run's episodes. `place`: where its user names the state.
    """
    if getattr(estimator(options.estimator), "rewards_tags", False):
        raise UserError(f"option estimator {options.estimator}: {source} do not say which kind of reasoning they are",
                        "choose another one")
    if options.stay:
        raise UserError(f"option stay: {source} do not say which actions changed nothing",
                        f"repeat the text of the turn before in {place} instead")
    if getattr(options, "bootstrap", False):
        raise UserError(f"option bootstrap: {source} do not say in which state an episode was cut", "leave it false")
    if options.state_key == LISTED_KEY:
        raise UserError(f"option state_key {LISTED_KEY}: {source} have no admissible actions", f"add them to {place}")
