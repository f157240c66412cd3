"""An index on disk: opened in no time, mapped into memory, shared by all processes of a machine.

    score(query, document) = sum over terms of  count in query * idf * tf / (tf + k1 (1 - b + b length / mean length))
    idf = ln(1 + (N - n + 1/2) / (n + 1/2))

Lucene's BM25Similarity (8.11) to the bit: the length passes through one byte, each term's score is in single precision,
their sum in double and then rounded to single. N and the mean count documents that have a term. Equal scores are
ordered by document id. k1 and b are those of anserini and pyserini.
"""

from __future__ import annotations

import json
import math
import mmap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envservice.bm25 import analysis
from envservice.bm25.norms import inverse_norms

K1 = 0.9
B = 0.4
FORMAT = f"1/{analysis.VERSION}"
"""Of the folder and of the terms in it."""
META = "meta.json"


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found."""

    id: str
    score: float


class Index:
    """Ranks documents. Thread-safe: nothing is written after `open_index`.

    Arrays: `postings` (terms + 1,) where each term's documents start; `docs`, `tfs` (postings,) document numbers,
    ascending within a term, and how often it has the term; `norms` (documents,) byte codes of lengths; `order`
    (documents,) place of the document's id among all sorted ids.
    """

    def __init__(self, meta: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.digest: str = meta["digest"]
        """Of what it was built from, as given to `build`."""
        self._counted: int = meta["counted"]
        self._inverse_norms = inverse_norms(meta["tokens"] / self._counted if self._counted else 1.0, K1, B)
        self._ids = Strings(arrays["ids"], arrays["id_offsets"])
        self._terms = Strings(arrays["terms"], arrays["term_offsets"])
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, query: str, k: int) -> list[Hit]:
        """The best `k` documents with a term of the query, best first; fewer where fewer have one."""
        scores = np.zeros(len(self), dtype=np.float64)
        for term, count in Counter(analysis.terms(query)).items():
            place = self._terms.find(term)
            if place is not None:
                self._add(scores, place, count)
        found = np.flatnonzero(scores)
        single = scores[found].astype(np.float32)
        if len(found) > k:
            worst = np.partition(single, len(found) - k)[len(found) - k]
            found, single = found[single >= worst], single[single >= worst]
        best = np.lexsort((self._arrays["order"][found], -single))[:k]
        return [Hit(self._ids[int(found[i])], float(single[i])) for i in best]

    def _add(self, scores: NDArray[np.float64], term: int, count: int) -> None:
        start, end = map(int, self._arrays["postings"][term : term + 2])
        docs = self._arrays["docs"][start:end]
        found = end - start
        idf = np.float32(math.log(1 + (self._counted - found + 0.5) / (found + 0.5)))
        weight = np.float32(count) * idf
        frequencies = self._arrays["tfs"][start:end].astype(np.float32)
        frequencies *= self._inverse_norms[self._arrays["norms"][docs]]
        scores[docs] += weight - weight / (np.float32(1) + frequencies)


class Strings:
    """Many strings in one array of UTF-8 bytes, read where they lie."""

    def __init__(self, text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._text = text
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> str:
        return self._bytes(place).decode()

    def find(self, wanted: str) -> int | None:
        """The place of a string, if they are sorted."""
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
    """The index in a folder. Raises FileNotFoundError, and ValueError for one of another format."""
    meta = json.loads((folder / META).read_text())
    if meta["format"] != FORMAT:
        raise ValueError(f"{folder} has format {meta['format']}, not {FORMAT}")
    return Index(meta, {path.stem: _load(path, mapped) for path in folder.glob("*.npy")})


def _load(path: Path, mapped: bool) -> NDArray[Any]:
    worth_it = path.stat().st_size > mmap.PAGESIZE  # and an empty array cannot be mapped
    return np.load(path, mmap_mode="r" if mapped and worth_it else None)
