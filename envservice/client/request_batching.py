"""Request batching without a timer: all elements that queue up during one request go together in the next.

There is one batcher for each verb of each replica. It has up to IN_FLIGHT requests in flight, so that the server works
on one batch while the client handles the results of the other. A batch takes all queued elements, within bounds. A
reset may take seconds, so each goes alone: a batch of them would need one deadline for all, and be answered after the
last one. The elements of a batch that is refused, or whose answer is too large, are sent again one by one, so that only
the episode that is the cause ends by a fault.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec
from pydantic import ValidationError

from envservice.wire import MAX_BODY, REPLAYS_HEADER, WireModel
from services.amounts import rounded
from services.errors import EnvFault
from services.http.bounded import TooLarge, read_response

AGAIN_S = 5.0
"""Seconds without an answer after which a copy of a request is sent. The pause before each further copy doubles."""


async def first_answer(
    send: Callable[[], Coroutine[Any, Any, httpx.Response]], *, once: bool, within_s: float,
) -> httpx.Response:
    """Sends a request and, unless `once`, copies of it while there is no answer. Returns the first answer.

    All copies together have `within_s`: each also has its own deadline, but that of a late copy would come too late.

    Copies are sent because a connection may be dead without a sign. If the server is only slow, they do no harm: it
    carries out a reset or a step once, however often it is asked. A server that shuts down refuses a copy but still
    answers the first request, so an error counts only if no other copy is under way. Raises httpx.HTTPError.
    """
    copies: set[asyncio.Task[httpx.Response]] = set()
    pause = None if once else AGAIN_S
    try:
        async with asyncio.timeout(within_s):
            while True:
                copies.add(asyncio.create_task(send()))
                answer = await _answer_within(copies, pause)
                if answer is not None:
                    return answer
                pause = 2 * pause if pause else None
    except TimeoutError:
        raise httpx.ReadTimeout(f"no answer within {rounded(within_s)} s") from None
    finally:
        for copy in copies:
            copy.cancel()


async def _answer_within(copies: set[asyncio.Task[httpx.Response]], seconds: float | None) -> httpx.Response | None:
    """Returns the first answer of `copies`, or None after `seconds`. Raises the error of the last one if all fail."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        done, _ = await asyncio.wait(copies, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return None
        copies -= done
        answered = [copy for copy in done if copy.exception() is None]
        if answered or not copies:
            return (answered or [*done])[0].result()


IN_FLIGHT = 2
BATCH = 128
"""The most elements of one request. A server accepts 256."""
BATCH_BYTES = 2 * 1024 * 1024
"""The most bytes of one request, unless a single element is larger. A server accepts 4 MiB."""
PLACES = re.compile("([0-9]{1,9}( *, *[0-9]{1,9})*)?")
"""The value of REPLAYS_HEADER: positions of a batch's elements, or nothing."""
ANSWER_BYTES = MAX_BODY
ELEMENT_BYTES = 1 << 20
"""An answer has at most ANSWER_BYTES, and ELEMENT_BYTES more for each element. An observation above MAX_BODY could not
be sent back to a server that has lost its session, and fits no prompt."""
LIST_BYTES = 256 << 20
"""The most bytes of a list of tasks: enough for 600,000 tasks whose ids have MAX_TASK characters."""
SHARE = 1 / 3
"""The share of a call's time that one replica gets for an answer, copies included. The rest is left to ask another."""
QUOTED = 300
"""Characters of a wrong answer that an error repeats."""
TEMPORARY = (408, 425, 429)
"""Statuses after which the same request is sent again: timeout, too early, too many requests. A proxy or a load
balancer in front of the server may send them."""
BACKOFF_S = (0.05, 2.0)
"""First and longest pause after a replica failed. The pause doubles each time it fails again."""
Form = TypeVar("Form", bound=WireModel)


class Unreachable(Exception):
    """No answer came, so nobody knows whether the request was carried out. Ask again, here or elsewhere."""


class NotSent(Unreachable):
    """No connection could be made, so the request was not carried out."""


class FinalRefusal(EnvFault):
    """The server answered, and no retry of the same request helps: it is refused, or its answer is too large."""


class Later(Exception):
    """The server has no room for another session, or a service behind it is unavailable. Ask it again after
    `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ElementReply:
    """The result of one element."""

    element: dict[str, Any]
    rebuilt: bool
    """Whether its session was rebuilt."""


class _Queued(NamedTuple):
    """One element in the queue, with the future of its result."""

    element: bytes
    future: asyncio.Future[ElementReply]
    alone: bool = False
    """Whether it goes in a request of its own, because one of several elements was refused."""


class Replica:
    """One server: its batchers, and the time at which it may be asked again after a failure.

    `live`: whether its environment acts on the world, so that a second reset would act again. `answer_s`: the seconds
    that it has for each answer.
    """

    def __init__(self, http: httpx.AsyncClient, url: str, live: Callable[[], bool], answer_s: float) -> None:
        self.url = url
        self.answer_s = answer_s
        self._http = http
        self.open_at = 0.0
        """It gets no requests before this time.monotonic()."""
        self.answers = 0
        """Number of requests that it has answered."""
        self.unavailable = False
        """Whether its last answer was that a service behind its environment is unavailable."""
        self._pause = 0.0
        """Seconds of the pause after its last failure. 0: it has answered since."""
        self._batchers = {
            "reset": RequestBatcher(self, http, f"{url}/v1/episodes:reset", once=live, most=1),
            **{verb: RequestBatcher(self, http, f"{url}/v1/episodes:{verb}", once=_never, most=BATCH)
               for verb in ("step", "close")}}

    async def ask(self, verb: str, element: bytes) -> ElementReply:
        """Sends one element, together with others that wait. Raises Unreachable, Later, or EnvFault if no retry
        helps."""
        return await self._batchers[verb].ask(element)

    async def get(self, path: str, form: type[Form]) -> Form:
        """Reads a document. Raises Unreachable, Later, or EnvFault if no retry helps.

        A document of another form raises Unreachable: a proxy may send a page of its own while the server starts.
        """
        url = self.url + path
        try:
            response = await first_answer(lambda: read_response(self._http.stream("GET", url), LIST_BYTES),
                                          once=False, within_s=self.answer_s)
        except TooLarge as error:
            self.answered()
            raise FinalRefusal(f"{url}: {error}") from error
        except httpx.HTTPError as error:
            self.failed()
            raise Unreachable(f"{url}: {type(error).__name__} {error}") from error
        if response.status_code != 200:
            raise self.refused(response)
        try:
            reply = form.model_validate_json(response.content)
        except ValidationError:
            self.failed()
            raise Unreachable(f"{url} answered with no {form.__name__}: {response.content[:QUOTED]!r}") from None
        self.answered()
        return reply

    def failed(self) -> None:
        """Pauses requests to it: longer after each failure, with jitter, so that clients do not return all at once."""
        first, longest = BACKOFF_S
        self._pause = min(2 * self._pause or first, longest)
        self.open_at = time.monotonic() + self._pause * random.uniform(0.5, 1.0)

    def answered(self) -> None:
        """Forgets its failures after an answer."""
        self._pause = 0.0
        self.answers += 1

    def refused(self, response: httpx.Response) -> Exception:
        """Counts a reply other than 200 as an answer or a failure, and returns the exception for it."""
        error = refusal(response)
        if isinstance(error, Unreachable):
            self.failed()
        else:
            self.answered()
        return error

    @property
    def failing(self) -> bool:
        """Whether the last request to it failed."""
        return self._pause > 0


class RequestBatcher:
    """Sends the elements of one verb to one replica, at most `most` in a request, and without copies if `once()`."""

    def __init__(self, replica: Replica, http: httpx.AsyncClient, url: str, *, once: Callable[[], bool],
                 most: int) -> None:
        self._once = once
        self._most = most
        self._replica = replica
        self._http = http
        self._url = url
        self._queue: deque[_Queued] = deque()
        self._sending = 0
        self._senders: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references

    async def ask(self, element: bytes) -> ElementReply:
        """See Replica.ask."""
        future: asyncio.Future[ElementReply] = asyncio.get_running_loop().create_future()
        self._queue.append(_Queued(element, future))
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
            # No await since the queue was seen empty, so an element that is queued later starts another sender.
            self._sending -= 1

    def _take(self) -> list[_Queued]:
        batch: list[_Queued] = []
        size = 0
        while self._queue and len(batch) < self._most:
            first = self._queue[0]
            if batch and (first.alone or batch[0].alone or size + len(first.element) > BATCH_BYTES):
                break
            asked = self._queue.popleft()
            if not asked.future.done():  # the caller may have been cancelled
                batch.append(asked)
                size += len(asked.element)
        return batch

    async def _send(self, batch: list[_Queued]) -> None:
        replies: list[ElementReply | Exception]
        try:
            replies = list(await self._post(batch))
            self._replica.answered()
        except Unreachable as error:
            replies = [type(error)(str(error)) for _ in batch]
        except FinalRefusal as error:
            if len(batch) > 1:  # one element may be the cause; a repeated step gives its recorded result
                self._queue.extendleft(asked._replace(alone=True) for asked in reversed(batch))
                return
            replies = [error]
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

    async def _post(self, batch: list[_Queued]) -> list[ElementReply]:
        content = b"[" + b",".join(asked.element for asked in batch) + b"]"
        most = ANSWER_BYTES + ELEMENT_BYTES * len(batch)
        try:
            response = await first_answer(
                lambda: read_response(self._http.stream("POST", self._url, content=content), most),
                once=self._once(), within_s=self._replica.answer_s)
        except TooLarge as error:
            self._replica.answered()
            raise FinalRefusal(f"{self._url}: {error}") from error
        except httpx.HTTPError as error:
            kind = NotSent if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else Unreachable
            raise self._failed(f"{self._url}: {type(error).__name__} {error}", kind) from error
        if response.status_code != 200:
            raise self._replica.refused(response)
        try:
            results = msgspec.json.decode(response.content, type=list[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise self._failed(f"{self._url} did not answer with a list of results: {error}") from error
        if len(results) != len(batch):
            raise self._failed(f"{self._url} returned {len(results)} results for {len(batch)} elements")
        places = response.headers.get(REPLAYS_HEADER, "")
        if not PLACES.fullmatch(places):
            raise self._failed(f"{self._url} sent {REPLAYS_HEADER}: {places!r:.60}, which is no list of places")
        rebuilt = {int(place) for place in places.split(",") if place}
        return [ElementReply(result, place in rebuilt) for place, result in enumerate(results)]

    def _failed(self, text: str, kind: type[Unreachable] = Unreachable) -> Unreachable:
        self._replica.failed()
        return kind(text)


def _never() -> bool:
    return False


def refusal(response: httpx.Response) -> Exception:
    """Returns the exception for a reply other than 200."""
    status = response.status_code
    if status in (429, 503) and response.headers.get("retry-after", "").isdecimal():
        return Later("the server is full", float(response.headers["retry-after"]))
    text = f"{response.url} answered {status}: {response.text[:QUOTED]}"
    return FinalRefusal(text) if status in range(400, 500) and status not in TEMPORARY else Unreachable(text)
