"""From the bytes of a request to the bytes of its reply: lists of elements, each answered on its own.

Sessions are stepped inline in the event loop where a step costs less than a hop to a thread (the own engine: 30 us),
and in one dedicated thread where it would hold up the loop (the shipped engine: 40 ms, and it is not thread-safe, so
never more than one). Either way the store is entered by one thread at a time, which is all that it asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Generic, TypeVar

import msgspec
from pydantic import BaseModel, FailFast, Field, TypeAdapter, ValidationError

from envservice.server.metrics import ServerMetrics
from envservice.server.sessions import SessionStore
from envservice.wire.problems import Problem
from envservice.wire.schemas import MAX_BATCH, CloseRequest, ResetRequest, StepRequest
from services.telemetry.tracing import span

BOUNDS = (Field(max_length=MAX_BATCH), FailFast())
"""Of a request's list: it is given up at the first thing wrong, so that what is sent in bad faith costs little."""
STOPPING_S = 1.0
"""When to ask again what a server refuses that is about to stop: another answers then, or this one anew."""
INLINE_S = 0.02
"""Longest time that one request holds the event loop before it lets others in."""

Element = TypeVar("Element", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """The JSON list, and the positions of the elements whose session had to be rebuilt."""

    body: bytes
    rebuilt: list[int]


class Verb(Generic[Element]):
    """One kind of request: its element's model, and the call that turns an element of a client into its JSON and
    whether its session was rebuilt."""

    def __init__(
        self, name: str, one: type[Element], many: TypeAdapter[list[Element]],
        call: Callable[[Element, str], tuple[bytes, bool]],
    ) -> None:
        self.name = name
        self._one = TypeAdapter(one)
        self._many = many
        self.call = call

    def decode(self, body: bytes) -> list[Element | Problem]:
        """The elements, each valid or its own problem. Raises Problem where the body is no list, or too long a one."""
        try:
            return list(self._many.validate_json(body))
        except ValidationError:
            return [self._decode_one(raw) for raw in _split(body)]

    def _decode_one(self, raw: bytes) -> Element | Problem:
        try:
            return self._one.validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            return Problem("malformed", f"{field or 'element'}: {first['msg']}", field=field or None)


class Batches:
    """Answers requests over one store; `threaded` as the module says."""

    def __init__(self, store: SessionStore, metrics: ServerMetrics, *, threaded: bool) -> None:
        self._store = store
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine") if threaded else None
        self._stopping = False
        self.reset = Verb("reset", ResetRequest, TypeAdapter(Annotated[list[ResetRequest], *BOUNDS]), self._reset)
        self.step = Verb("step", StepRequest, TypeAdapter(Annotated[list[StepRequest], *BOUNDS]), self._step)
        self.close = Verb("close", CloseRequest, TypeAdapter(Annotated[list[CloseRequest], *BOUNDS]), self._close)

    async def answer(self, verb: Verb[Element], body: bytes, client: str, parents: Sequence[str] = ()) -> Reply:
        """One result per element, in order. Raises Problem where the whole is refused: no list, too long, all full.

        `client`: the address of whoever asks. `parents`: the traceparent of each element, where the client traces.
        """
        parts: list[bytes] = []
        rebuilt: list[int] = []
        problems: list[Problem] = []
        since = time.perf_counter()
        for place, element in enumerate(verb.decode(body)):
            try:
                parent = parents[place] if place < len(parents) else ""
                part, replayed = await (
                    self._traced(verb, element, client, parent) if parent else self._call(verb, element, client))
            except Problem as problem:
                problems.append(problem)
                part, replayed = msgspec.json.encode(problem.body()), False
            parts.append(part)
            if replayed:
                rebuilt.append(place)
            if time.perf_counter() - since > INLINE_S:
                await asyncio.sleep(0)
                since = time.perf_counter()
        if parts and len(problems) == len(parts) and all(problem.kind == "full" for problem in problems):
            raise problems[0]  # one refusal, which whoever answers the request counts
        for problem in problems:
            self._metrics.refused(problem.kind)
        return Reply(b"[" + b",".join(parts) + b"]", rebuilt)

    def refuse_more(self) -> None:
        """The server stops: elements that have not begun are refused, so that their requests can end."""
        self._stopping = True

    async def expire(self) -> None:
        """Drops the sessions whose lease has ended."""
        await self._enter(self._store.expire)

    def drop_all(self) -> None:
        """Drops all sessions; for when no request is left."""
        self._store.clear()

    async def _call(self, verb: Verb[Element], element: Element | Problem, client: str) -> tuple[bytes, bool]:
        if isinstance(element, Problem):
            raise element
        if self._stopping and not isinstance(element, CloseRequest):
            raise Problem("full", "this server is about to stop", retry_after=STOPPING_S)
        return await self._enter(partial(verb.call, element, client))

    async def _traced(
        self, verb: Verb[Element], element: Element | Problem, client: str, parent: str,
    ) -> tuple[bytes, bool]:
        with span(f"serve {verb.name}", parent=parent) as told:
            part, replayed = await self._call(verb, element, client)
            if told and replayed:
                told.rename("serve rebuild")
            return part, replayed

    async def _enter(self, call: Callable[[], T]) -> T:
        if self._thread is None:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _reset(self, element: ResetRequest, client: str) -> tuple[bytes, bool]:
        since = time.perf_counter()
        answer = self._store.reset(element.episode_id, element.task, client)
        self._metrics.reset(since)
        return answer.body, False

    def _step(self, element: StepRequest, client: str) -> tuple[bytes, bool]:
        since = time.perf_counter()
        answer = self._store.step(element, client)
        self._metrics.stepped(since, rebuilt=answer.rebuilt)
        return answer.body, answer.rebuilt

    def _close(self, element: CloseRequest, _client: str) -> tuple[bytes, bool]:
        return (b'{"closed":true}' if self._store.close(element.episode_id) else b'{"closed":false}'), False


def _split(body: bytes) -> list[bytes]:
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem("malformed", f"the body is not a JSON list: {error}") from None
    if len(parts) > MAX_BATCH:
        raise Problem("too_large", f"{len(parts)} elements; at most {MAX_BATCH} in one request")
    return [bytes(part) for part in parts]
