"""State keys decide which steps of a group share a value (`learner.credit.state_key`).

    observation             equal raw feedback texts, character by character (paper, section 4.1)
    observation+admissible  equal texts and equal sets of admissible actions: nearly the true state in text games
    environment             equal ids that the environment itself gives (Outcome.state)
    prompt                  equal prompt tokens: all that the policy saw, its history and its choices included
    normalized              texts that are equal once case, white space, punctuation and numbers are folded
    similarity              greedy clusters of texts by difflib's ratio (GiGPO's option for noisy text)
    embedding               greedy clusters of texts by the cosine of counted byte trigrams

A key is a hash of (group, task, representative of the step), as 32 hexadecimal digits. Keys of texts pool the texts of
a group: a pool takes the distinct texts in order of appearance and a threshold, and returns each text's representative.
Steps of two groups or two tasks never share a key.

Greedy clusters: texts are taken once each, in order of first appearance, episode by episode. A text joins the first
cluster whose first member it resembles, or starts a new one. So clusters depend on the order of the episodes, which is
that of k, whoever finished first. The other pools do not depend on it.

The state in which a budget cut an episode is pooled after all others, so it moves no step to another cluster and
changes no step's value. There was no prompt for it, so `prompt` has no key for it.

With `stay`, a step after an action that changed nothing (Step.unchanged) has the key of the step before it, whatever
its text is. Such an action then leads back to its own state, and its credit is what the lost turn costs there.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from services.config.env import Section
from services.config.sections import CreditSection
from services.errors import UserError
from services.process.own_code import make_object, spelling_hint
from services.records import CUT, Episode, Step

Pool = Callable[[Sequence[str], float], dict[str, str]]
"""(distinct texts in order of appearance, threshold) -> text -> representative. Later texts do not change it."""
BUCKETS = 4096
"""Number of buckets that trigrams are hashed into."""


def pooled(rows: Sequence[Sequence[str]], cuts: Iterable[str], pool: Pool, threshold: float) -> dict[str, str]:
    """Returns text -> representative for all texts of a group: those of its steps, [episode][step], and of its cuts."""
    return pool(list(dict.fromkeys(chain(chain.from_iterable(rows), cuts))), threshold)


def exact(texts: Sequence[str], threshold: float) -> dict[str, str]:  # noqa: ARG001 the registry's form
    """Returns each text as its own representative."""
    return {text: text for text in texts}


def normalized(texts: Sequence[str], threshold: float) -> dict[str, str]:  # noqa: ARG001 the registry's form
    """Returns each text's folded form as its representative (`fold`)."""
    return {text: fold(text) for text in texts}


def similarity(texts: Sequence[str], threshold: float) -> dict[str, str]:
    """Joins texts if SequenceMatcher(a=text, b=first member).ratio() >= threshold.

    The ratio is 2 M / (characters of both), with M matched characters. M is at most the number of characters that both
    texts share in any order, so counting characters excludes most pairs without changing the result.
    """
    alphabet = {c: i for i, c in enumerate(sorted(set(chain.from_iterable(texts))))}
    counts = np.zeros((len(texts), len(alphabet)), dtype=np.int64)
    for i, text in enumerate(texts):
        counts[i] = np.bincount(np.array([alphabet[c] for c in text], dtype=np.intp), minlength=len(alphabet))
    lengths = counts.sum(axis=1)
    matchers: dict[int, SequenceMatcher[str]] = {}

    def resembles(new: int, founders: npt.NDArray[np.intp]) -> int | None:
        common = np.minimum(counts[founders], counts[new]).sum(axis=1)
        possible = 2.0 * common / (lengths[founders] + lengths[new]) >= threshold
        for founder in founders[possible].tolist():
            matcher = matchers.setdefault(founder, SequenceMatcher(None, "", texts[founder]))
            matcher.set_seq1(texts[new])
            if matcher.ratio() >= threshold:
                return founder
        return None

    return _greedy(texts, resembles)


def embedding(texts: Sequence[str], threshold: float) -> dict[str, str]:
    """Joins texts if the cosine of their trigram counts is >= threshold. The first member stands for its cluster.

    A text's embedding is [BUCKETS] counts of the byte trigrams of its words (case and punctuation folded, numbers
    kept), each hashed to a bucket. It depends on no other text. Sums of counts are exact, so the result is the same
    on every machine.
    """
    vectors = np.stack([_embed(text) for text in texts])
    norms = (vectors * vectors).sum(axis=1)

    def resembles(new: int, founders: npt.NDArray[np.intp]) -> int | None:
        alike = vectors[founders] @ vectors[new] >= threshold * np.sqrt(norms[founders] * norms[new])
        return int(founders[alike.argmax()]) if alike.any() else None

    return _greedy(texts, resembles)


def fold(text: str) -> str:
    """Returns the words of a text in lower case with one space between them, and `#` for each word with a digit.

    In order: Unicode's compatibility form (NFKC) and case folding; numbers with inner . , : / become one digit, so
    that 1,299.00 is one number; every character except letters and digits separates words; a word with a digit (7,
    1st, b07xyz3) becomes `#`.
    """
    one = re.sub(r"\d+(?:[.,:/]\d+)*", "0", _plain(text))
    return " ".join("#" if "0" in word else word for word in _WORDS.findall(one))


_WORDS = re.compile(r"[^\W_]+")


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _embed(text: str) -> npt.NDArray[np.float64]:
    """Returns the embedding [BUCKETS]. Spaces are added at both ends, so that even an empty text has a trigram."""
    spaced = f"  {' '.join(_WORDS.findall(_plain(text)))} "
    data = np.frombuffer(spaced.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.uint32)
    grams = data[:-2] << 16 | data[1:-1] << 8 | data[2:]
    buckets = grams * np.uint32(2654435761) >> 20  # Knuth's multiplicative hash, its upper 12 bits
    return np.bincount(buckets, minlength=BUCKETS).astype(np.float64)


def _greedy(texts: Sequence[str], resembles: Callable[[int, npt.NDArray[np.intp]], int | None]) -> dict[str, str]:
    """Clusters the texts. `resembles(new, founders)` returns the first of the founders (indices) that `new` joins."""
    representatives: dict[str, str] = {}
    founders = np.empty(len(texts), dtype=np.intp)
    count = 0
    for new, text in enumerate(texts):
        joined = resembles(new, founders[:count])
        if joined is None:
            joined = founders[count] = new
            count += 1
        representatives[text] = texts[joined]
    return representatives


TEXT_KEYS: dict[str, Pool] = {
    "observation": exact, "normalized": normalized, "similarity": similarity, "embedding": embedding}


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

    Raises UserError if a key of the user's own returns no Keys, a wrong number of keys, or keys that are no texts.
    """
    key = find_key(options.state_key)
    keys = cast("object", key.keys(group, key.Options.model_validate(
        {name: value for name, value in options if name in key.Options.model_fields})))
    if not isinstance(keys, Keys):
        raise UserError(f"the state key {options.state_key} returned {keys!r:.40}",
                        "return gagpo.estimators.Keys from `keys`")
    if ([len(row) for row in keys.steps], len(keys.cut_in)) != ([len(one.steps) for one in group], len(group)):
        raise UserError(f"the state key {options.state_key} returned another number of keys than there are steps",
                        "return `steps` with one key for each step, [episode][step], and `cut_in` for each episode")
    flat: list[Any] = [*chain.from_iterable(keys.steps), *(cut for cut in keys.cut_in if cut is not None)]
    if wrong := [one for one in flat if not isinstance(one, str)]:
        raise UserError(f"the state key {options.state_key} returned {wrong[0]!r:.40}, which is no text",
                        "make keys with gagpo.estimators.state_key")
    return stayed(keys, [[step.unchanged for step in episode.steps] for episode in group]) if options.stay else keys


def state_key(group: str, task: str, anchor: str | bytes) -> str:
    """Returns the key of one representative. State keys of the user's own call it (docs/tasks/own-estimator.md)."""
    return key_function(group, task)(anchor)


def key_function(group: str, task: str) -> Callable[[str | bytes], str]:
    """Returns the function that makes a key from a representative: 32 hexadecimal digits.

    Each part is preceded by its length, so no two triples give the same bytes. The prefix, which all keys of a task
    share, is hashed once.
    """
    prefix = hashlib.blake2b(_with_length(group) + _with_length(task), digest_size=16)

    def key(anchor: str | bytes) -> str:
        digest = prefix.copy()
        digest.update(_with_length(anchor))
        return digest.hexdigest()

    return key


def _with_length(part: str | bytes) -> bytes:
    data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
    return len(data).to_bytes(8, "big") + data


def stayed(keys: Keys, unchanged: Sequence[Sequence[bool]]) -> Keys:
    """Returns keys in which an action that changed nothing leads back to its own state.

    `unchanged` [episode][step]: whether the action changed nothing.
    """
    steps, cut_in = [list(row) for row in keys.steps], list(keys.cut_in)
    for i, (row, same) in enumerate(zip(steps, unchanged, strict=True)):
        for t in range(1, len(row)):
            if same[t - 1]:
                row[t] = row[t - 1]
        if same[-1] and cut_in[i] is not None:
            cut_in[i] = row[-1]
    return Keys(steps=steps, cut_in=cut_in)


@dataclass(frozen=True, slots=True)
class StateText:
    """The text of a step, and that of the state after the last step of an episode ("": there is none)."""

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
    """A rule for which steps are in the same state."""

    @property
    def Options(self) -> type[BaseModel]:  # noqa: N802 a class, which implementations nest
        """The keys of `learner.credit` that it adds."""
        ...

    @property
    def knows_cuts(self) -> bool:
        """Whether it has a key for the state in which an episode was cut."""
        ...

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:
        """Returns the keys of a group's episodes, in their order. Keys of two groups or tasks must differ."""
        ...


@dataclass(frozen=True, slots=True)
class TextKey:
    """A key of texts, which `pool` pools."""

    text: StateText
    pool: Pool
    Options: type[BaseModel] = NoOptions
    knows_cuts: bool = True

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:
        """Returns the keys; see the module."""
        return _text_keys(self.text, self.pool, group, similarity_of(options))


class EnvironmentKey:
    """Keys of the environment's own ids."""

    Options: type[BaseModel] = NoOptions
    knows_cuts = True

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:  # noqa: ARG002 the protocol's form
        """Returns the keys. Raises UserError if the environment gave a step no id."""
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
    representatives = pooled(rows, filter(None, cuts), pool, threshold)
    steps: list[list[str]] = []
    cut_in: list[str | None] = []
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for episode, row, cut in zip(group, rows, cuts, strict=True):
        of = episode.ticket.group, episode.ticket.task
        if of not in keys:
            key = key_function(*of)
            hashed = {text: key(text) for text in set(representatives.values())}
            keys[of] = {text: hashed[representative] for text, representative in representatives.items()}
        steps.append([keys[of][text] for text in row])
        cut_in.append(keys[of][cut] if cut else None)
    return Keys(steps=steps, cut_in=cut_in)


class PromptKey:
    """Keys of the prompt tokens, hashed as little-endian int32 on every platform."""

    Options: type[BaseModel] = NoOptions
    knows_cuts = False

    def keys(self, group: Sequence[Episode], options: Any) -> Keys:  # noqa: ARG002 the protocol's form
        """Returns the keys."""
        functions = [key_function(episode.ticket.group, episode.ticket.task) for episode in group]
        steps = [[key(step.prompt_ids.astype("<i4").tobytes()) for step in episode.steps]
                 for key, episode in zip(functions, group, strict=True)]
        return Keys(steps=steps, cut_in=[None] * len(group))


def listed(observation: str, choices: str) -> str:
    """Joins an observation and the digest of its admissible actions, which is hexadecimal or ""; "" if both are ""."""
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

    Raises UserError for an unknown name and for code that is no state key.
    """
    if (shipped := KEYS.get(name)) is not None:
        return shipped
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
