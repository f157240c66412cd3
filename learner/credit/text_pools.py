"""Which texts of a group stand for the same state: equal texts, folded texts, and greedy clusters of similar ones.

A pool takes the distinct texts in order of appearance and a threshold, and returns each text's stand-in.

Greedy: texts are taken once each, in order of first appearance, episode by episode; a text joins the first cluster
whose first member it resembles, else it founds one. So clusters depend on the order of the episodes (which is that of
k, whoever finished first); the other pools do not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import chain

import numpy as np
import numpy.typing as npt

Pool = Callable[[Sequence[str], float], dict[str, str]]
"""(distinct texts in order of appearance, threshold) -> each text's stand-in. A text may look back, never ahead."""
BUCKETS = 4096
"""Number of buckets that trigrams are hashed into."""


def pooled(rows: Sequence[Sequence[str]], cuts: Iterable[str], pool: Pool, threshold: float) -> dict[str, str]:
    """Returns text -> stand-in for all texts of a group: those of its steps, [episode][step], and those at cuts."""
    return pool(list(dict.fromkeys(chain(chain.from_iterable(rows), cuts))), threshold)


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


TEXT_KEYS: dict[str, Pool] = {
    "observation": exact, "normalized": normalized, "similarity": similarity, "embedding": embedding}
