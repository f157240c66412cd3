"""Two sources of evidence: retrieval servers over HTTP, or an index in this process.

While no retrieval server answers, a search raises Unavailable, and the episode waits. A refusal, or an answer that is
no result, is an EnvFault, which ends the attempt at the episode. The original pipeline shows the policy the text
"Search error: ..." instead, but a policy must not learn from faults of our machines.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import httpx

from envservice.bm25.index import Hit, build, open_or_build
from services.errors import EnvFault, Unavailable
from services.files import JSON_BYTES
from services.http.bounded import PLAIN, UNLIMITED, read_response_within

DEADLINE_S = 15.0
"""Longest time of one search with all retries. By default a client waits longer for a step: env.call_seconds / 3."""
AT_ONCE = 32
"""The most background searches of one environment server at the same time."""
PAUSE_S = 1.0
"""For this long after a search without an answer, further searches fail at once. They would wait one after the
other."""
_BACKOFF_S = (0.1, 2.0)
_AGAIN = frozenset({429, 500, 502, 503, 504})


class Retriever(Protocol):
    """A source of evidence. It must be thread-safe."""

    def search(self, query: str, topk: int) -> Sequence[str]:
        """Returns the contents of the best documents, best first. Raises EnvFault; it is Unavailable if a retry may
        help."""
        ...


@runtime_checkable
class BackgroundRetriever(Retriever, Protocol):
    """A source on other machines, where many searches at once take as long as one."""

    def begin(self, query: str, topk: int) -> Future[Sequence[str]]:
        """Begins a search. The future gets the result of `search`, or its error."""
        ...


class IndexRetriever:
    """BM25 over (id, contents). The index is in memory, or in a folder named by the documents' digest."""

    def __init__(
        self, documents: Iterable[tuple[str, str]], folder: Path | None = None, *, digest: str = ""
    ) -> None:
        self._contents = dict(documents)
        items = self._contents.items
        self._index = build(items()) if folder is None else open_or_build(folder, digest, items)

    def __len__(self) -> int:
        return len(self._contents)

    def hits(self, query: str, topk: int) -> list[tuple[Hit, str]]:
        """Returns the best documents with their contents."""
        return [(hit, self._contents[hit.id]) for hit in self._index.search(query, topk)]

    def search(self, query: str, topk: int) -> list[str]:
        return [contents for _, contents in self.hits(query, topk)]


class HttpRetriever:
    """Asks retrieval servers in turn, and the next one after a failure. `urls` are those of POST /retrieve.

    Each gets an equal share of the deadline to answer, so that one that hangs leaves time for the others.
    The request has the fields of both servers in use, verl-agent's `query` and Search-R1's `queries`. Each server
    reads its own field and ignores the other. Both return
    {"result": [[{"document": {"contents": str}, "score": float}, ...]]}.
    """

    def __init__(self, urls: Sequence[str], *, deadline_s: float = DEADLINE_S) -> None:
        """Raises ValueError if there is no URL."""
        if not urls:
            raise ValueError("a retriever needs the URL of at least one server")
        self._urls = itertools.cycle(urls)
        self._deadline_s, self._share_s = deadline_s, deadline_s / len(urls)
        self._http = httpx.Client(trust_env=False, headers=PLAIN, limits=UNLIMITED)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="search")
        self._failure, self._open_at = "", 0.0  # why the last search without an answer failed, and when to ask again

    def begin(self, query: str, topk: int) -> Future[Sequence[str]]:
        return self._pool.submit(self.search, query, topk)

    def search(self, query: str, topk: int) -> list[str]:
        begun = time.monotonic()
        if begun < self._open_at:
            raise Unavailable(self._failure)
        body = {"query": query, "queries": [query], "topk": topk, "return_scores": True}
        deadline = begun + self._deadline_s
        pause, longest = _BACKOFF_S
        failure = "none"
        while (left := deadline - time.monotonic()) > 0:  # a pause may end late
            url, seconds = next(self._urls), min(left, self._share_s)
            try:
                response = read_response_within(
                    self._http.stream("POST", url, json=body, timeout=seconds), JSON_BYTES, seconds)
                failure = f"{url} answered {response.status_code}: {response.text[:200]}"
                if response.status_code == 200:
                    return _contents(response, url)[:topk]
                if response.status_code not in _AGAIN:
                    raise EnvFault(failure)
            except httpx.HTTPError as error:
                failure = f"{url}: {type(error).__name__} {error}"
            if time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, longest)
        self._failure = f"no search result within {self._deadline_s:g} s; last: {failure}"
        self._open_at = time.monotonic() + PAUSE_S
        raise Unavailable(self._failure)


def _contents(response: httpx.Response, url: str) -> list[str]:
    try:
        (hits,) = response.json()["result"]
        return [_text_of(hit) for hit in hits]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvFault(f"the answer of {url} is not a search result: {type(error).__name__} {error}") from error


def _text_of(hit: dict[str, Any]) -> str:
    contents: object = hit.get("document", hit)["contents"]  # without scores the hit is the document itself
    if not isinstance(contents, str):
        raise TypeError(f"contents are {contents!r:.60}, and not a text")
    return contents
