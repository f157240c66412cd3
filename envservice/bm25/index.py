"""A text index on disk. It is mapped into memory, so it opens at once and all processes of a machine share it.

    score(query, document) = sum over terms of  count in query * idf * tf / (tf + k1 (1 - b + b length / mean length))
    idf = ln(1 + (N - n + 1/2) / (n + 1/2))

Scores equal Lucene's BM25Similarity (8.11) to the bit: the length is rounded to one byte, each term's score is in
single precision, and their sum is in double precision and then rounded to single. N and the mean count only documents
that have a term. Equal scores are ordered by document id. anserini and pyserini use the same k1 = 0.9 and b = 0.4.

The postings of a build never are in memory all at once: they go to blocks on disk, and then each to its place.

    documents ──analysis──▶ term numbers ──a block full: sort by (term, document), count──▶ block files
    all read: sort terms and ids; for each block in turn, scatter its postings to the places of their terms

Besides a block, a build holds only the words and terms, the ids, and a few numbers per document. It writes to a folder
next to the target and renames it at the end, so an index is either complete or absent.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import shutil
import tempfile
import time
import uuid
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from envservice.bm25 import analysis
from services.errors import EnvFault
from services.files import cache_home

FORMAT = f"1/{analysis.VERSION}"
"""The version of the folder's format and of the analysis that made its terms."""
META = "meta.json"
_PRUNING_PAYS = 4
"""A pass over all documents, to find the k-th best score, costs as much as reading a quarter as many postings. So
pruning pays if this many times the remaining postings exceed the documents."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches a query."""

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
        place = bisect_left(range(len(self)), key, key=self._bytes)
        return place if place < len(self) and self._bytes(place) == key else None

    def _bytes(self, place: int) -> bytes:
        return self._text[self._offsets[place] : self._offsets[place + 1]].tobytes()


def open_index(folder: Path, *, mapped: bool = True) -> Index:
    """Opens the index in a folder. Raises FileNotFoundError if there is none, and ValueError if it is damaged or has
    another format."""
    meta = json.loads((folder / META).read_text(encoding="utf-8"))
    if meta.get("format") != FORMAT:
        raise ValueError(f"{folder} has format {meta.get('format')}, not {FORMAT}")
    try:
        return Index(meta, {path.stem: _load(path, mapped) for path in folder.glob("*.npy")})
    except (EOFError, KeyError) as error:  # of an empty and of a missing file
        raise ValueError(f"{folder} is damaged: {error!r}") from error


def _load(path: Path, mapped: bool) -> NDArray[Any]:
    large = path.stat().st_size > mmap.PAGESIZE  # an empty array cannot be mapped
    return np.load(path, mmap_mode="r" if mapped and large else None, allow_pickle=False)


# The influence of a document's length on its scores.
#
# Lucene keeps each length in one byte: exactly below 40, above that with four significant bits (SmallFloat.intToByte4).

K1 = 0.9
B = 0.4
_EXACT = 24
"""Number of codes that stand for themselves. The others count from here."""


def _length(code: int) -> int:
    bits, exponent = (code - _EXACT) & 7, ((code - _EXACT) >> 3) - 1
    if code < _EXACT:
        return code
    return _EXACT + (bits if exponent < 0 else (bits | 8) << exponent)


LENGTHS = np.array([_length(code) for code in range(256)], dtype=np.int64)
"""The number of terms that each code stands for, ascending: (256,)."""


def encode(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encodes numbers of terms (n,), rounded down."""
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def inverse_norms(average: float) -> NDArray[np.float32]:
    """Returns 1 / (K1 (1 - B + B length / average)) of each code: (256,).

    Every operation is in single precision, as in Lucene.
    """
    one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
    return one / (k1 * ((one - b) + b * LENGTHS.astype(np.float32) / np.float32(average)))


BLOCK = 4_000_000
"""Terms in a block. Each takes about 40 bytes of memory while the block is sorted."""
WAIT_S = 3600.0
"""Longest wait for another process that builds the same index."""
IN_MEMORY = 20_000
"""The most documents of an index that is built in memory, in seconds. A larger index is kept in the user's cache."""
_STOPPED = -1


def build(documents: Iterable[tuple[str, str]], folder: Path | None = None, *, digest: str = "") -> Index:
    """Builds an index over (id, text) in memory, or in a folder, which is replaced if it exists.

    `digest` names the documents for `open_or_build`. Raises ValueError if an id occurs twice.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            _write(documents, Path(temporary), digest)
            return open_index(Path(temporary), mapped=False)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}") for _ in range(2))
    fresh.mkdir()
    try:
        _write(documents, fresh, digest)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    finally:
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
    return open_index(folder)


def cache_folder(kind: str, digest: str) -> Path:
    """Returns the folder in the user's cache for the index of the documents that `digest` names."""
    return cache_home() / f"{kind}-{digest[:16]}"


def open_or_build(folder: Path, digest: str, documents: Callable[[], Iterable[tuple[str, str]]]) -> Index:
    """Opens the index in the folder if it is sound and of the documents that `digest` names; else builds it there.

    If several processes ask at once, one builds and the others wait for it. Raises EnvFault after an hour of waiting.
    """
    with suppress(FileNotFoundError, ValueError):
        index = open_index(folder)
        if index.digest == digest:
            return index
    with _alone(folder):
        with suppress(FileNotFoundError, ValueError):
            index = open_index(folder)
            if index.digest == digest:
                return index
        return build(documents(), folder, digest=digest)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + WAIT_S
    with folder.with_name(f".{folder.name}.lock").open("w", encoding="utf-8") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvFault(f"another process has been building {folder} for {WAIT_S:.0f} s") from None
                time.sleep(0.05)
        yield


def _write(documents: Iterable[tuple[str, str]], folder: Path, digest: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as blocks:
        writer = _Writer(folder, Path(blocks))
        for document, text in documents:
            writer.add(document, text)
        meta = {**writer.finish(), "format": FORMAT, "digest": digest}
    with (folder / META).open("w", encoding="utf-8") as file:
        json.dump(meta, file)
        file.flush()
        os.fsync(file.fileno())


class _Writer:
    def __init__(self, folder: Path, blocks: Path) -> None:
        self._folder = folder
        self._blocks = blocks
        self._num_blocks = 0
        self._ids: list[str] = []
        self._lengths = array("q")
        self._vocabulary: dict[str, int] = {}  # term -> number, in order of arrival
        self._words: dict[str, int] = {}  # word -> number of its term
        self._pending = array("i")  # the terms of the block, ordered by document
        self._first = 0  # the first document of the block

    def add(self, document: str, text: str) -> None:
        numbers = self._words
        ids = [numbers[word] if word in numbers else self._number(word) for word in analysis.words(text)]
        before = len(self._pending)
        self._pending.extend(number for number in ids if number != _STOPPED)
        self._ids.append(document)
        self._lengths.append(len(self._pending) - before)
        if len(self._pending) >= BLOCK:
            self._flush()

    def _number(self, word: str) -> int:
        term = analysis.term_of(word)
        number = _STOPPED if term is None else self._vocabulary.setdefault(term, len(self._vocabulary))
        self._words[word] = number
        return number

    def _flush(self) -> None:
        lengths = np.array(self._lengths[self._first :], dtype=np.int64)
        docs = np.repeat(np.arange(self._first, len(self._ids), dtype=np.int64), lengths)
        keys = (np.array(self._pending, dtype=np.int64) << 32) | docs
        keys, counts = np.unique(keys, return_counts=True)
        terms, sizes = np.unique((keys >> 32).astype(np.int32), return_counts=True)
        block = {
            "docs": (keys & 0xFFFFFFFF).astype(np.int32), "tfs": np.minimum(counts, 0xFFFF).astype(np.uint16),
            "terms": terms, "sizes": sizes,
        }
        for name, values in block.items():
            np.save(self._blocks / f"{self._num_blocks}.{name}.npy", values)
        self._num_blocks += 1
        self._first = len(self._ids)
        self._pending = array("i")

    def finish(self) -> dict[str, int]:
        """Writes all files except the meta file, and returns the counts for it."""
        self._flush()
        self._words.clear()
        by_id = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        for before, after in pairwise(by_id):
            if self._ids[before] == self._ids[after]:
                raise ValueError(f"two documents have the id {self._ids[before]!r}")
        lengths = np.array(self._lengths, dtype=np.int64)
        order = np.empty(len(by_id), dtype=np.int32)
        order[by_id] = np.arange(len(by_id), dtype=np.int32)
        self._save("order", order)
        self._save_strings("ids", "id_offsets", self._ids)
        counted = int((lengths > 0).sum())
        mean = lengths.sum() / counted if counted else 1.0
        self._place(self._sorted_terms(), inverse_norms(mean)[encode(lengths)])
        return {"counted": counted}

    def _sorted_terms(self) -> NDArray[np.int64]:
        """Saves the sorted terms. Returns the place of each term among them, by its number: (terms,)."""
        terms = sorted(self._vocabulary)
        self._save_strings("terms", "term_offsets", terms)
        places = np.empty(len(terms), dtype=np.int64)
        for place, term in enumerate(terms):
            places[self._vocabulary[term]] = place
        self._vocabulary.clear()
        return places

    def _place(self, places: NDArray[np.int64], norms: NDArray[np.float32]) -> None:
        """Writes the postings. `norms` (documents,) holds the inverse norm of each document."""
        sizes = np.zeros(len(places), dtype=np.int64)
        for block in range(self._num_blocks):
            sizes[places[self._block(block, "terms")]] += self._block(block, "sizes")
        starts = np.concatenate([[0], np.cumsum(sizes)])
        self._save("postings", starts)
        docs = self._create("docs", np.dtype(np.int32), int(starts[-1]))
        gains = self._create("gains", np.dtype(np.float32), int(starts[-1]))
        free = starts[:-1].copy()
        for block in range(self._num_blocks):
            terms, counts = places[self._block(block, "terms")], self._block(block, "sizes")
            within = np.concatenate([[0], np.cumsum(counts)])
            to = np.repeat(free[terms] - within[:-1], counts) + np.arange(within[-1])
            docs[to] = block_docs = self._block(block, "docs")
            gains[to] = np.float32(1) + self._block(block, "tfs").astype(np.float32) * norms[block_docs]
            free[terms] += counts

    def _block(self, block: int, name: str) -> NDArray[Any]:
        return np.load(self._blocks / f"{block}.{name}.npy", allow_pickle=False)

    def _create(self, name: str, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        path = self._folder / f"{name}.npy"
        if size == 0:  # cannot be mapped
            np.save(path, np.empty(0, dtype))
            return np.empty(0, dtype)
        return open_memmap(path, mode="w+", dtype=dtype, shape=(size,))

    def _save(self, name: str, values: NDArray[Any]) -> None:
        np.save(self._folder / f"{name}.npy", values)

    def _save_strings(self, text: str, offsets: str, strings: list[str]) -> None:
        encoded = [string.encode() for string in strings]
        self._save(text, np.frombuffer(b"".join(encoded), dtype=np.uint8))
        self._save(offsets, np.cumsum([0, *map(len, encoded)], dtype=np.int64))
