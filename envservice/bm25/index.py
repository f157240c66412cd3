"""An index on disk. It is mapped into memory, so it opens at once and all processes of a machine share it.

    score(query, document) = sum over terms of  count in query * idf * tf / (tf + k1 (1 - b + b length / mean length))
    idf = ln(1 + (N - n + 1/2) / (n + 1/2))

Scores equal Lucene's BM25Similarity (8.11) to the bit: the length is rounded to one byte, each term's score is in
single precision, and their sum is in double precision and then rounded to single. N and the mean count only documents
that have a term. Equal scores are ordered by document id. anserini and pyserini use the same k1 = 0.9 and b = 0.4.
"""

from __future__ import annotations

import json
import math
import mmap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envservice.bm25 import analysis

FORMAT = f"1/{analysis.VERSION}"
"""The version of the folder's format and of the analysis that made its terms."""
META = "meta.json"
_PRUNING_PAYS = 4
"""Searching for the k-th best passes over all documents, which costs as much as a fourth as many postings."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One document that a query found."""

    id: str
    score: float


class _Postings(NamedTuple):
    """The place of a term's postings, and its idf times its count in the query: the most that it can add to a score."""

    start: int
    end: int
    weight: np.float32


class Index:
    """An index that ranks documents. It is thread-safe: nothing is written after `open_index`.

    Arrays: `postings` (terms + 1,) where each term's documents start; `docs` (postings,) int32 document numbers,
    ascending within a term; `gains` (postings,) float32 1 + tf / norm of the term in that document; `order`
    (documents,) int32 place of the document's id among all sorted ids.
    """

    def __init__(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.digest: str = meta["digest"]
        """The digest of the documents, as it was given to `build`."""
        self._counted: int = meta["counted"]
        self._ids = Strings(arrays["ids"], arrays["id_offsets"])
        self._terms = Strings(arrays["terms"], arrays["term_offsets"])
        self._postings, self._docs, self._gains, self._order = (
            arrays[name] for name in ("postings", "docs", "gains", "order"))

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, query: str, k: int) -> list[Hit]:
        """Returns the best `k` documents that have a term of the query, best first; fewer if fewer have one."""
        docs, scores = self._scores(self._rarest_first(query), k)
        single = scores.astype(np.float32)
        if len(docs) > k:
            worst = np.partition(single, len(docs) - k)[len(docs) - k]
            docs, single = docs[single >= worst], single[single >= worst]
        best = np.lexsort((self._order[docs], -single))[:k]
        return [Hit(self._ids[int(docs[i])], float(single[i])) for i in best]

    def _rarest_first(self, query: str) -> list[_Postings]:
        postings: list[_Postings] = []
        for term, count in Counter(analysis.terms(query)).items():
            place = self._terms.find(term)
            if place is not None:
                start, end = map(int, self._postings[place : place + 2])
                idf = math.log(1 + (self._counted - (end - start) + 0.5) / (end - start + 0.5))
                postings.append(_Postings(start, end, np.float32(count) * np.float32(idf)))
        return sorted(postings, key=lambda term: term.end - term.start)

    def _scores(self, terms: list[_Postings], k: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Returns documents, ascending, with their scores: at least all that can be among the best k.

        Frequent terms take long to read and add little. Once k documents score higher than the remaining terms could
        lift a new document, only documents within that distance of the k-th best are looked up in the remaining terms.
        """
        scores = np.zeros(len(self), dtype=np.float64)
        spent, most = 0.0, float(sum(term.weight for term in terms))
        for done, (start, end, weight) in enumerate(terms, start=1):
            scores[self._docs[start:end]] += weight - weight / self._gains[start:end]
            spent, most = spent + float(weight), most - float(weight)
            if spent > most and sum(term.end - term.start for term in terms[done:]) * _PRUNING_PAYS > len(self):
                docs = np.flatnonzero(scores)
                near = _within_reach(scores[docs], k, most)
                if near is not None:
                    return self._completed(docs[near], scores[docs[near]], terms[done:], k)
        docs = np.flatnonzero(scores)
        return docs, scores[docs]

    def _completed(
        self, candidates: NDArray[np.intp], scores: NDArray[np.float64], terms: list[_Postings], k: int
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        most = float(sum(term.weight for term in terms))
        for start, end, weight in terms:
            docs = self._docs[start:end]
            places = np.searchsorted(docs, candidates.astype(docs.dtype))
            places[places == len(docs)] = 0
            having = docs[places] == candidates
            scores[having] += weight - weight / self._gains[start:end][places[having]]
            most -= float(weight)
            near = _within_reach(scores, k, most)
            if near is not None:
                candidates, scores = candidates[near], scores[near]
        return candidates, scores


def _within_reach(scores: NDArray[np.float64], k: int, most: float) -> NDArray[np.bool_] | None:
    """Returns the documents that can be among the best k if each gains up to `most`.

        Returns None as long as a document without any score could be among them.
        """
    if len(scores) < k:
        return None
    # The bound is a millionth lower: final scores are rounded to single precision, and ids order equal ones.
    worst = np.partition(scores, len(scores) - k)[len(scores) - k] * (1 - 1e-6)
    return scores >= worst - most if worst > most else None


class Strings:
    """Many strings in one array of UTF-8 bytes, read in place."""

    def __init__(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._text = text
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> str:
        return self._bytes(place).decode()

    def find(self, wanted: str) -> int | None:
        """Finds the place of a string in sorted strings."""
        key = wanted.encode()
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._bytes(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low if low < len(self) and self._bytes(low) == key else None

    def _bytes(self, place: int) -> bytes:
        return self._text[self._offsets[place] : self._offsets[place + 1]].tobytes()


def open_index(folder: Path, *, mapped: bool = True) -> Index:
    """Opens the index in a folder. Raises FileNotFoundError, and ValueError for an index of another format."""
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    if meta["format"] != FORMAT:
        raise ValueError(f"{folder} has format {meta['format']}, not {FORMAT}")
    return Index(meta, {path.stem: _load(path, mapped) for path in folder.glob("*.npy")})


def _load(path: Path, mapped: bool) -> NDArray[Any]:
    worth_it = path.stat().st_size > mmap.PAGESIZE  # and an empty array cannot be mapped
    return np.load(path, mmap_mode="r" if mapped and worth_it else None, allow_pickle=False)
