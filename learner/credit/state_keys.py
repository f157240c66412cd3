"""State keys decide which steps of a group share a value (`learner.credit.state_key`).

    observation             equal raw feedback texts, character by character (paper, section 3)
    observation+admissible  equal texts and equal sets of admissible actions: nearly the true state in text games
    environment             equal ids that the environment itself gives (Outcome.state)
    prompt                  equal prompt tokens: all that the policy saw, its history and its choices included
    normalized              texts that are equal once case, white space, punctuation and numbers are folded
    similarity              greedy clusters of texts by difflib's ratio (GiGPO's option for noisy text)
    embedding               greedy clusters of texts by the cosine of counted character trigrams

A key is 32 hexadecimal digits over (group, task, a stand-in for the step). For keys of texts the stand-in is a text:
pooled texts have the same stand-in, chosen among all texts of the group. Steps of two groups or two tasks never share
a key.

The state that an episode's budget cut it off in takes part after all others, so it moves no step to another cluster
and no step's value. A prompt was never made of it: `prompt` has no key for it.

With `stay`, a step after an action that changed nothing (Step.unchanged) has the key of the step before it, whatever
its text says. Such an action then leads back to its own state, and its credit is what the lost turn costs there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, cast

from pydantic import BaseModel, ConfigDict, Field

from learner.credit.text_pools import TEXT_KEYS, Pool, exact, pooled
from services.config.credit import CreditSection
from services.config.env import Section
from services.errors import UserError
from services.process.own_code import make_object, spelling_hint
from services.records import CUT, Episode, Step

LISTED_KEY = "observation+admissible"
CLUSTERED = frozenset({"similarity", "embedding"})
"""The keys that compare texts by the threshold `learner.credit.similarity`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """State keys of one group."""

    steps: list[list[str]]
    """[episode][step]: the key of s_t."""
    cut_in: list[str | None]
    """[episode]: key of the state in which a budget cut it. None: the game ended, or there is no such key."""


def keys_of_group(group: Sequence[Episode], options: CreditSection) -> Keys:
    """Returns the keys of the K episodes of one group, in their order.

    Raises UserError if a key of the user's own returns no Keys, another number of them than there are steps, or other
    things than texts.
    """
    key = find_key(options.state_key)
    found = cast("object", key.keys(group, key.Options.model_validate(
        {name: value for name, value in options if name in key.Options.model_fields})))
    if not isinstance(found, Keys):
        raise UserError(f"the state key {options.state_key} returned {found!r:.40}",
                        "return learner.credit.state_keys.Keys from `keys`")
    if ([len(row) for row in found.steps], len(found.cut_in)) != ([len(one.steps) for one in group], len(group)):
        raise UserError(f"the state key {options.state_key} returned another number of keys than there are steps",
                        "return `steps` with one key for each step, [episode][step], and `cut_in` for each episode")
    flat: list[Any] = [*chain.from_iterable(found.steps), *(cut for cut in found.cut_in if cut is not None)]
    if wrong := [one for one in flat if not isinstance(one, str)]:
        raise UserError(f"the state key {options.state_key} returned {wrong[0]!r:.40}, which is no text",
                        "make keys by learner.credit.state_keys.state_key")
    return stayed(found, [[step.unchanged for step in episode.steps] for episode in group]) if options.stay else found


def state_key(group: str, task: str, anchor: str | bytes) -> str:
    """Returns the key of one stand-in, as `state_keys_of` makes it. State keys of the user's own call it
    (docs/tasks/own-estimator.md)."""
    return state_keys_of(group, task)(anchor)


def state_keys_of(group: str, task: str) -> Callable[[str | bytes], str]:
    """Returns the function that makes a key from a stand-in: 32 hexadecimal digits.

    Each part is preceded by its length, so no two triples give the same bytes. What all keys of a task share is hashed
    once.
    """
    shared = hashlib.blake2b(_measured(group) + _measured(task), digest_size=16)

    def key(anchor: str | bytes) -> str:
        digest = shared.copy()
        digest.update(_measured(anchor))
        return digest.hexdigest()

    return key


def _measured(part: str | bytes) -> bytes:
    data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
    return len(data).to_bytes(8, "big") + data


def stayed(found: Keys, unchanged: Sequence[Sequence[bool]]) -> Keys:
    """Returns the keys with which an action that changed nothing leads back to its own state.

    `unchanged` says for each step, [episode][step], whether its action changed nothing.
    """
    steps, cut_in = [list(row) for row in found.steps], list(found.cut_in)
    for i, (row, same) in enumerate(zip(steps, unchanged, strict=True)):
        for t in range(1, len(row)):
            if same[t - 1]:
                row[t] = row[t - 1]
        if same[-1] and cut_in[i] is not None:
            cut_in[i] = row[-1]
    return Keys(steps=steps, cut_in=cut_in)


@dataclass(frozen=True, slots=True)
class StateText:
    """The text that stands for a step, and for the state after the last step of an episode ("": there is none)."""

    of_step: Callable[[Step], str]
    of_end: Callable[[Episode], str]


class NoOptions(Section):
    """A state key without options."""


class ClusterOptions(Section):
    """Options of the state keys that compare texts."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    similarity: float = Field(default=0.95, gt=0, lt=1)
    """Least similarity of two states that count as the same."""


class StateKey(Protocol):
    """One way to say which steps are in the same state."""

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 a class, which implementations nest
        """The keys of `learner.credit` that it adds."""
        ...

    @property
    def knows_cuts(self) -> bool:
        """Whether it has a key for the state in which an episode was cut off."""
        ...

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:
        """Returns the keys of a group's episodes, in their order. Keys of two groups or tasks must differ."""
        ...


@dataclass(frozen=True, slots=True)
class TextKey:
    """A key of texts, which `pool` gathers."""

    text: StateText
    pool: Pool
    Options: type[BaseModel] = NoOptions
    knows_cuts: bool = True

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:
        """Returns the keys; see the module."""
        return _text_keys(self.text, self.pool, group, similarity_of(options))


class EnvironmentKey:
    """The environment's own ids. Raises UserError if the environment gave none."""

    Options: type[BaseModel] = NoOptions
    knows_cuts = True

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:  # noqa: ARG002 the protocol's form
        """Returns the keys."""
        for episode in group:
            if not all(step.state for step in episode.steps):
                raise UserError(
                    f"learner.credit.state_key=environment, and the environment gave {episode.ticket.task} no state",
                    "choose another state key (ALFWorld: or set env.alfworld.exact_state=true)")
        return _text_keys(StateText(lambda step: step.state, lambda one: one.final_state), exact, group, 0.0)


def similarity_of(options: object) -> float:
    """Returns the threshold of the keys that compare texts."""
    return getattr(options, "similarity", ClusterOptions().similarity)


def _text_keys(text: StateText, pool: Pool, group: Sequence[Episode], threshold: float) -> Keys:
    rows = [[text.of_step(step) for step in episode.steps] for episode in group]
    cuts = [text.of_end(episode) if episode.end in CUT else "" for episode in group]
    stand_in = pooled(rows, filter(None, cuts), pool, threshold)
    steps: list[list[str]] = []
    cut_in: list[str | None] = []
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for episode, row, cut in zip(group, rows, cuts, strict=True):
        of = episode.ticket.group, episode.ticket.task
        if of not in keys:
            key = state_keys_of(*of)
            hashed = {text: key(text) for text in set(stand_in.values())}
            keys[of] = {text: hashed[stand] for text, stand in stand_in.items()}
        steps.append([keys[of][text] for text in row])
        cut_in.append(keys[of][cut] if cut else None)
    return Keys(steps=steps, cut_in=cut_in)


class PromptKey:
    """The prompt tokens as little-endian int32, whatever the platform."""

    Options: type[BaseModel] = NoOptions
    knows_cuts = False

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:  # noqa: ARG002 the protocol's form
        """Returns the keys."""
        makers = [state_keys_of(episode.ticket.group, episode.ticket.task) for episode in group]
        steps = [[key(step.prompt_ids.astype("<i4").tobytes()) for step in episode.steps]
                 for key, episode in zip(makers, group, strict=True)]
        return Keys(steps=steps, cut_in=[None] * len(group))


def listed(observation: str, choices: str) -> str:
    """Joins an observation and the digest of its admissible actions, which is hexadecimal or empty. Without both it is
    ""."""
    return f"{choices}\n{observation}" if observation or choices else ""


OBSERVED = StateText(lambda step: step.observation, lambda episode: episode.final_observation)
LISTED = StateText(lambda step: listed(step.observation, step.choices),
               lambda episode: listed(episode.final_observation, episode.final_choices))
KEYS: dict[str, StateKey] = {
    **{name: TextKey(OBSERVED, pool, ClusterOptions if name in CLUSTERED else NoOptions)
       for name, pool in TEXT_KEYS.items()},
    LISTED_KEY: TextKey(LISTED, exact), "environment": EnvironmentKey(), "prompt": PromptKey()}


def find_key(name: str) -> StateKey:
    """Returns the state key of that name, or the user's own one if the name is `module:Name`, a class or an object.

    Raises UserError for an unknown name, which lists those that exist, and for code that is no state key.
    """
    if (found := KEYS.get(name)) is not None:
        return found
    if ":" not in name:
        raise UserError(f"there is no state key {name!r}",
                        spelling_hint(name) or f"use one of: {', '.join(KEYS)}, or module:Name of your own")
    own = make_object(name, kind="state key", key="learner.credit.state_key")
    if lacks := [part for part in ("Options", "knows_cuts", "keys") if not hasattr(own, part)]:
        raise UserError(f"{name} is no state key, because it has no {lacks[0]}",
                        "see StateKey in learner/credit/state_keys.py")
    if not (isinstance(own.Options, type) and issubclass(own.Options, BaseModel)):
        raise UserError(f"{name}.Options is no options model", "make it a subclass of pydantic.BaseModel")
    return own
