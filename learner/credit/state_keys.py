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

Greedy: texts are taken once each, in order of first appearance, episode by episode. A text joins the first cluster
whose first member it resembles, else it starts a new cluster. So clusters depend on the order of the episodes (the
order of k, not of finishing); the other keys do not.

The state in which a budget cut an episode is added after all others, so it changes no other step's cluster or value. No
prompt was made from it, so `prompt` has no key for it.

With `stay`, a step after an action that changed nothing (Step.unchanged) has the key of the step before it, whatever
its text says. Such an action then leads back to its own state, and its credit is what the lost turn costs there.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from services.config.tree import CreditSection
from services.errors import UserError
from services.records import Episode, Step

Pool = Callable[[Sequence[str], float], dict[str, str]]
"""(distinct texts in order of appearance, threshold) -> text's stand-in. It may depend on earlier texts only."""
CUT: tuple[str, ...] = ("turns", "context")
"""Ends of episodes that a budget caused, not the game."""
BUCKETS = 4096
"""Number of buckets that trigrams are hashed into."""
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
    """Returns the keys of the K episodes of one group, in their order."""
    found = KEYS[options.state_key](group, options)
    return stayed(found, [[step.unchanged for step in episode.steps] for episode in group]) if options.stay else found


def pooled(rows: Sequence[Sequence[str]], cuts: Iterable[str], pool: Pool, threshold: float) -> dict[str, str]:
    """Returns text -> stand-in for all texts of a group: those of its steps, [episode][step], and those at cuts."""
    return pool(list(dict.fromkeys(chain(chain.from_iterable(rows), cuts))), threshold)


def state_key(group: str, task: str, anchor: str | bytes) -> str:
    """Returns 32 hexadecimal digits. Each part is preceded by its length, so no two triples give the same bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (group, task, anchor):
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


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


def _environment(group: Sequence[Episode], options: CreditSection) -> Keys:
    for episode in group:
        if not all(step.state for step in episode.steps):
            raise UserError(f"learner.credit.state_key=environment, and the environment gave {episode.ticket.task} no "
                            "state", "choose another state key (ALFWorld: or set env.alfworld.exact_state=true)")
    return _text_keys(StateText(lambda step: step.state, lambda episode: episode.final_state), exact, group, options)


def _text_keys(words: StateText, pool: Pool, group: Sequence[Episode], options: CreditSection) -> Keys:
    rows = [[words.of_step(step) for step in episode.steps] for episode in group]
    cuts = [words.of_end(episode) if episode.end in CUT else "" for episode in group]
    stand_in = pooled(rows, filter(None, cuts), pool, options.similarity)
    steps: list[list[str]] = []
    cut_in: list[str | None] = []
    keys: dict[tuple[str, str], dict[str, str]] = {}
    for episode, row, cut in zip(group, rows, cuts, strict=True):
        of = episode.ticket.group, episode.ticket.task
        if of not in keys:
            made = {text: state_key(*of, text) for text in set(stand_in.values())}
            keys[of] = {text: made[stand] for text, stand in stand_in.items()}
        steps.append([keys[of][text] for text in row])
        cut_in.append(keys[of][cut] if cut else None)
    return Keys(steps=steps, cut_in=cut_in)


def _prompt_keys(group: Sequence[Episode], options: CreditSection) -> Keys:  # noqa: ARG001 the registry's form
    """As little-endian int32, whatever the platform."""
    steps = [[state_key(episode.ticket.group, episode.ticket.task, step.prompt_ids.astype("<i4").tobytes())
              for step in episode.steps] for episode in group]
    return Keys(steps=steps, cut_in=[None] * len(group))


def exact(texts: Sequence[str], threshold: float) -> dict[str, str]:  # noqa: ARG001 the registry's form
    """Returns each text as its own stand-in."""
    return {text: text for text in texts}


def normalized(texts: Sequence[str], threshold: float) -> dict[str, str]:  # noqa: ARG001 the registry's form
    """Returns the folded text as stand-in of all texts that fold to it: see `fold`."""
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
    """Returns the embedding [BUCKETS]. A space is added at both ends, so that even an empty text has a trigram."""
    spaced = f"  {' '.join(_WORDS.findall(_plain(text)))} "
    data = np.frombuffer(spaced.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.uint32)
    grams = data[:-2] << 16 | data[1:-1] << 8 | data[2:]
    buckets = grams * np.uint32(2654435761) >> 20  # Knuth's multiplicative hash, its upper 12 bits
    return np.bincount(buckets, minlength=BUCKETS).astype(np.float64)


def _greedy(texts: Sequence[str], resembles: Callable[[int, npt.NDArray[np.intp]], int | None]) -> dict[str, str]:
    """Clusters the texts. `resembles(new, founders)` returns the first of the founders (indices) that `new` joins."""
    stand_in: dict[str, str] = {}
    founders = np.empty(len(texts), dtype=np.intp)
    count = 0
    for new, text in enumerate(texts):
        joined = resembles(new, founders[:count])
        if joined is None:
            joined = founders[count] = new
            count += 1
        stand_in[text] = texts[joined]
    return stand_in


def listed(observation: str, choices: str) -> str:
    """Joins an observation and the digest of its admissible actions, which is hexadecimal or empty. "" stays ""."""
    return f"{choices}\n{observation}" if observation else ""


OBSERVED = StateText(lambda step: step.observation, lambda episode: episode.final_observation)
LISTED = StateText(lambda step: listed(step.observation, step.choices),
               lambda episode: listed(episode.final_observation, episode.final_choices))
TEXT_KEYS: dict[str, Pool] = {
    "observation": exact, "normalized": normalized, "similarity": similarity, "embedding": embedding}
KEYS: dict[str, Callable[[Sequence[Episode], CreditSection], Keys]] = {
    "prompt": _prompt_keys, LISTED_KEY: partial(_text_keys, LISTED, exact), "environment": _environment,
    **{name: partial(_text_keys, OBSERVED, pool) for name, pool in TEXT_KEYS.items()}}
