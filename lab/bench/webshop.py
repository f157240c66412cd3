"""Measures WebShop's pages over a thousand products, and its ranking over a million.

A results page is one step: a search, ten products as text, the possible clicks. The original renders HTML, turns it
into text and parses it again for the clicks, which takes 50 to 60 ms, measured elsewhere. The large index is over
invented words with the frequencies of a language (Zipf). Its queries are ten words of a document, as instructions are.
Times are wall-clock medians, so run it on a quiet machine.
"""

from __future__ import annotations

import random
import resource
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from envservice.bm25.index import Index, build, open_index
from envservice.webshop.catalogue import make_stock
from envservice.webshop.environment import HITS, WebshopEnvironment
from envservice.webshop.session import WebshopSession
from lab.bench.figures import Figure, Report, silent

FAMILIES = 9
"""Families of each kind of product, which makes 1,080 products."""
DOCUMENTS = 1_000_000
WORDS = 40
"""Number of words of a document."""
VOCABULARY = 300_000
QUERY_WORDS = 10
_TASKS, _QUERIES = 200, 200
_CHUNK = 20_000
_MIB, _KIB = 2**20, 2**10


def run(report: Report = silent) -> list[Figure]:
    """Runs the bench in some minutes, most of them for building the large index. It needs 3 GB of disk meanwhile."""
    report("pages", 0, 2)
    pages = _pages()
    report("ranking over a million products", 1, 2)
    return [*pages, *_ranking()]


def _pages() -> list[Figure]:
    shop = WebshopEnvironment(make_stock(FAMILIES))
    steps: dict[str, list[float]] = {"results page": [], "item page": [], "purchase": []}
    for task in shop.tasks("test")[:_TASKS]:
        session, goal = shop.open(task), shop.goal(task)
        assert isinstance(session, WebshopSession)
        session.reset()
        steps["results page"].append(_timed(lambda: session.step(f"search[{goal.instruction}]")))  # noqa: B023 - called at once
        offered = session.step("search[" + goal.title + "]").admissible_actions
        steps["item page"].append(_timed(lambda: session.step(offered[2])))  # noqa: B023
        steps["purchase"].append(_timed(lambda: session.step("click[buy now]")))  # noqa: B023
    return [Figure(name=f"{name}, 1,080 products", value=1000 * statistics.median(times), unit="ms")
            for name, times in steps.items()]


def _ranking() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        seconds = _timed(lambda: build(_documents(DOCUMENTS), index))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB
        size = sum(file.stat().st_size for file in index.iterdir()) / _MIB
        queries = _times(open_index(index))
    return [
        Figure(name="index of 1M products: making its texts and build", value=seconds, unit="s"),
        Figure(name="index of 1M products: most memory of the build", value=peak, unit="MiB"),
        Figure(name="index of 1M products: on disk, mapped and shared", value=size, unit="MiB"),
        Figure(name="index of 1M products: query", value=1000 * statistics.median(queries), unit="ms"),
    ]


def _times(index: Index) -> list[float]:
    rng = random.Random(1)
    texts = [text.split() for _, text in _documents(_QUERIES)]
    return [_timed(lambda: index.search(query, HITS))  # noqa: B023 - called at once
            for query in (" ".join(rng.sample(words, QUERY_WORDS)) for words in texts)]


def _documents(count: int) -> Iterator[tuple[str, str]]:
    """Yields `count` documents as (id, text), always the same ones."""
    rng = np.random.default_rng(0)
    share = np.cumsum(1.0 / (np.arange(VOCABULARY) + 2.7))
    words = [_word(number) for number in range(VOCABULARY)]
    for start in range(0, count, _CHUNK):
        ranks = np.searchsorted(share, rng.random((_CHUNK, WORDS)) * share[-1])
        for number, row in enumerate(ranks.tolist()[: count - start], start=start):
            yield f"B{number:09d}", " ".join([words[rank] for rank in row])


def _word(number: int) -> str:
    """Returns a word for a number, different for each."""
    letters = ""
    while number:
        number, letter = divmod(number, 20)
        letters += string.ascii_lowercase[letter + 1]
    return f"x{letters}k"


def _timed(do: Callable[[], object]) -> float:
    """Returns the seconds that a call takes."""
    since = time.perf_counter()
    do()
    return time.perf_counter() - since
