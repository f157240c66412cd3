"""Builds an index in bounded memory: blocks of postings on disk, then one pass that puts each posting in its place.

    documents ──analysis──▶ term numbers ──a block full: sort by (term, document), count──▶ block files
    all read: sort terms and ids; for each block in turn, scatter its postings to the places of their terms

Three things in memory grow with the catalogue: the vocabulary, the ids, and 9 bytes per document. A build writes to a
folder beside the target and renames it at the end, so an index is either complete or absent.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from envservice.bm25 import analysis
from envservice.bm25.index import FORMAT, META, Index, open_index
from services.errors import EnvFault
from services.files import cache_home

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
"""Returns the number of terms that each code stands for, ascending: (256,)."""


def encode(lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encodes numbers of terms (n,), rounded down."""
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def inverse_norms(average: float, k1: float = K1, b: float = B) -> NDArray[np.float32]:
    """Returns 1 / (k1 (1 - b + b length / average)) of each code: (256,).

    Every operation is in single precision, as in Lucene.
    """
    one, k1_, b_ = np.float32(1), np.float32(k1), np.float32(b)
    return one / (k1_ * ((one - b_) + b_ * LENGTHS.astype(np.float32) / np.float32(average)))


BLOCK = 4_000_000
"""Terms in a block. Each takes about 40 bytes of memory while the block is sorted."""
WAIT_S = 3600.0
"""Longest wait for another process that builds the same index."""
IN_MEMORY = 20_000
"""The index of so many documents takes seconds to build. A larger one is kept in the user's cache and shared."""
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
    """Opens the index in the folder if it was built from the documents that `digest` names; else builds it there.

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
        self._first = 0  # the document of each term in the block

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
