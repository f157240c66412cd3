"""What queues up while a request is on its way goes together in the next: micro-batches without a timer.

A lane is one replica and one verb. It keeps IN_FLIGHT requests going, so that the server works on one batch while the
client handles the answers of the other; a batch is all that is queued at that moment, within bounds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import msgspec

from envservice.wire.schemas import REPLAYS_HEADER, TRACES_HEADER
from services.errors import EnvFault

IN_FLIGHT = 2
BATCH = 128
"""Elements of one request; a server takes 256."""
BATCH_BYTES = 2 * 1024 * 1024
"""Of one request; a server takes 4 MiB, and one element may be large."""
BACKOFF_S = (0.05, 2.0)
"""First and longest pause after a replica fails; doubled each time it fails again."""


class Unreachable(Exception):
    """The request may or may not have been carried out: ask again, here or elsewhere."""


class Full(Exception):
    """No room for another session here before `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the server is full for another {retry_after:.0f} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ElementReply:
    """One element of a reply."""

    element: dict[str, Any]
    rebuilt: bool
    """Its session had to be rebuilt."""


class _Asked(NamedTuple):
    """One element that waits, and who waits for its reply."""

    element: bytes
    parent: str
    future: asyncio.Future[ElementReply]


class Replica:
    """One server: its lanes, and when it may be asked again after it failed."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.url = url
        self.open_at = 0.0
        """time.monotonic() before which it is left alone."""
        self._failures = 0
        self._lanes = {verb: Lane(self, http, f"{url}/v1/episodes:{verb}") for verb in ("reset", "step", "close")}

    async def ask(self, verb: str, element: bytes, parent: str = "") -> ElementReply:
        """One element, sent along with others. Raises Unreachable, Full, or EnvFault where asking again is no use.

        `parent`: the traceparent of what it belongs to.
        """
        return await self._lanes[verb].ask(element, parent)

    def failed(self) -> None:
        """Leaves it alone for a while: longer each time, and not in step with other clients."""
        first, longest = BACKOFF_S
        pause = min(first * 2**self._failures, longest)
        self.open_at = time.monotonic() + pause * random.uniform(0.5, 1.0)
        self._failures += 1

    def answered(self) -> None:
        """It is well."""
        self._failures = 0


class Lane:
    """Elements of one verb on their way to one replica."""

    def __init__(self, replica: Replica, http: httpx.AsyncClient, url: str) -> None:
        self._replica = replica
        self._http = http
        self._url = url
        self._queue: deque[_Asked] = deque()
        self._sending = 0
        self._senders: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    async def ask(self, element: bytes, parent: str = "") -> ElementReply:
        """See Replica.ask."""
        future: asyncio.Future[ElementReply] = asyncio.get_running_loop().create_future()
        self._queue.append(_Asked(element, parent, future))
        if self._sending < IN_FLIGHT:
            self._sending += 1
            sender = asyncio.create_task(self._send_all())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await future

    async def _send_all(self) -> None:
        try:
            while self._queue:
                batch = self._take()
                if batch:
                    await self._send(batch)
        finally:
            # In the same breath as the look at the queue: whoever queues from here on starts another sender.
            self._sending -= 1

    def _take(self) -> list[_Asked]:
        batch: list[_Asked] = []
        size = 0
        while self._queue and len(batch) < BATCH and (not batch or size + len(self._queue[0].element) <= BATCH_BYTES):
            asked = self._queue.popleft()
            if not asked.future.done():  # whoever asked may have been cancelled
                batch.append(asked)
                size += len(asked.element)
        return batch

    async def _send(self, batch: list[_Asked]) -> None:
        replies: list[ElementReply | Exception]
        try:
            replies = list(await self._post(batch))
            self._replica.answered()
        except Unreachable as error:
            self._replica.failed()
            replies = [Unreachable(str(error)) for _ in batch]
        except Exception as error:
            replies = [error] * len(batch)
        except BaseException:
            for asked in batch:
                asked.future.cancel()
            raise
        for asked, reply in zip(batch, replies, strict=True):
            if asked.future.done():
                continue
            if isinstance(reply, Exception):
                asked.future.set_exception(reply)
            else:
                asked.future.set_result(reply)

    async def _post(self, batch: list[_Asked]) -> list[ElementReply]:
        content = b"[" + b",".join(asked.element for asked in batch) + b"]"
        traced = any(asked.parent for asked in batch)
        headers = {TRACES_HEADER: ",".join(asked.parent for asked in batch)} if traced else None
        try:
            response = await self._http.post(self._url, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._url}: {type(error).__name__} {error}") from error
        if response.status_code != 200:
            raise refusal(response)
        try:
            answers = msgspec.json.decode(response.content, type=list[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise Unreachable(f"{self._url} answered what is no list of results: {error}") from error
        if len(answers) != len(batch):
            raise Unreachable(f"{self._url} answered {len(answers)} elements to {len(batch)}")
        rebuilt = {int(place) for place in response.headers.get(REPLAYS_HEADER, "").split(",") if place}
        return [ElementReply(answer, place in rebuilt) for place, answer in enumerate(answers)]


def refusal(response: httpx.Response) -> Exception:
    """What a reply other than 200 means to whoever asked."""
    if response.status_code == 503 and response.headers.get("retry-after", "").isdigit():
        return Full(float(response.headers["retry-after"]))
    text = f"{response.url} answered {response.status_code}: {response.text[:300]}"
    return EnvFault(text) if response.status_code in range(400, 500) else Unreachable(text)
