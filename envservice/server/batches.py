"""Turns the bytes of a request into the bytes of its reply. Each element of the list is answered on its own.

If a step costs less than a change of threads (our ALFWorld engine: 30 us), sessions are stepped in the event loop. If
it would block the loop (ALFWorld's shipped engine: 40 ms), they are stepped in one dedicated thread; only one, because
that engine is not thread-safe. In both cases one thread at a time enters the store, as the store requires.
"""

from __future__ import annotations

import asyncio
import re
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, FailFast, Field, TypeAdapter, ValidationError

from envservice.server.metrics import ServerMetrics
from envservice.server.sessions import SessionStore
from envservice.wire import MAX_BATCH, CloseRequest, Problem, ResetRequest, StepRequest
from services.files import NOT_JSON

BOUNDS = (Field(max_length=MAX_BATCH), FailFast())
"""The bounds of a request's list. Validation stops at the first invalid element."""
_PLACE = re.compile(r" - at `\$\.?(.+)`$")
_NAME = re.compile(r"field `([^`]*)`")
STOPPING_S = 1.0
"""Seconds after which a client of a stopping server asks again: another server answers then, or this one restarted."""
INLINE_S = 0.02
"""Time after which a request lets others run, between two of its elements."""

Element = TypeVar("Element", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """The JSON list, and the positions of the elements whose session was rebuilt."""

    body: bytes
    rebuilt: list[int]


class Verb(Generic[Element]):
    """One kind of request. `one` and `many` are the model of an element and of the list. `call` takes an element and
    the client's address, and returns the result as JSON and whether the session was rebuilt."""

    def __init__(
        self, name: str, one: type[Element], many: TypeAdapter[list[Element]],
        call: Callable[[Element, str], tuple[bytes, bool]],
    ) -> None:
        self.name = name
        self._one = TypeAdapter(one)
        self._many = many
        shape = _struct_of(one)
        self._shape = msgspec.json.Decoder(shape)
        self._shapes = msgspec.json.Decoder(list[shape])
        self.call = call

    def decode(self, body: bytes) -> list[Element | Problem]:
        """Returns the elements, with a Problem in place of each invalid one. Raises Problem if the body is no list or
        too long.

        msgspec checks the shapes first, up to the first error. Pydantic alone would build an error for each wrong value
        and each unknown field of an element: ten seconds for 4 MiB of them.
        """
        try:
            self._shapes.decode(body)
            return list(self._many.validate_json(body))
        except (*NOT_JSON, ValidationError):
            return [self._decode_one(raw) for raw in _split(body)]

    def _decode_one(self, raw: bytes) -> Element | Problem:
        try:
            self._shape.decode(raw)
            return self._one.validate_json(raw)
        except NOT_JSON as error:
            return _malformed(str(error))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            return Problem("malformed", f"{field or 'element'}: {first['msg']}", field=field or None)


class Batches:
    """Answers requests over one store. `threaded`: in a dedicated thread, as described above."""

    def __init__(self, store: SessionStore, metrics: ServerMetrics, *, threaded: bool) -> None:
        self._store = store
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine") if threaded else None
        self._stopping = False
        self.reset = Verb("reset", ResetRequest, TypeAdapter(Annotated[list[ResetRequest], *BOUNDS]), self._reset)
        self.step = Verb("step", StepRequest, TypeAdapter(Annotated[list[StepRequest], *BOUNDS]), self._step)
        self.close = Verb("close", CloseRequest, TypeAdapter(Annotated[list[CloseRequest], *BOUNDS]), self._close)

    async def answer(self, verb: Verb[Element], body: bytes, client: str) -> Reply:
        """Returns one result per element, in order. Raises Problem if the body is no list or too long, or if every
        element met a full server.

        `client` is the address of the client.
        """
        parts: list[bytes] = []
        rebuilt: list[int] = []
        problems: list[Problem] = []
        elements = verb.decode(body)
        if self._thread is not None and (steps := [each for each in elements if isinstance(each, StepRequest)]):
            await self._enter(partial(self._store.foresee, steps))
        since = time.perf_counter()
        for place, element in enumerate(elements):
            try:
                part, replayed = await self._call(verb, element, client)
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
            raise problems[0]  # one refusal, which the caller counts
        for problem in problems:
            self._metrics.refused(problem.kind)
        return Reply(b"[" + b",".join(parts) + b"]", rebuilt)

    def refuse_more(self) -> None:
        """Refuses elements that have not begun, so that their requests can end before the server stops."""
        self._stopping = True

    async def expire(self) -> None:
        """Drops the sessions whose lease has ended."""
        await self._enter(self._store.expire)

    def drop_all(self) -> None:
        """Drops all sessions. Call it after the last request has ended."""
        self._store.clear()

    async def _call(self, verb: Verb[Element], element: Element | Problem, client: str) -> tuple[bytes, bool]:
        if isinstance(element, Problem):
            raise element
        if self._stopping and not isinstance(element, CloseRequest):
            raise Problem("full", "this server is about to stop", retry_after=STOPPING_S)
        return await self._enter(partial(verb.call, element, client))

    async def _enter(self, call: Callable[[], T]) -> T:
        if self._thread is None:
            return self._inside(call)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._inside, call)

    def _inside(self, call: Callable[[], T]) -> T:
        with self._store.activity:
            try:
                return call()
            except Problem as problem:
                _release(problem)
                raise

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


def _release(problem: Problem) -> None:
    """Clears the frames of a failure, of each exception that it was raised from or during, and of each member of a
    group.

    So a session that failed is freed now, in the thread that has played it. Its frames would otherwise hold it until
    Python collects cycles, in any thread.
    """
    chain: list[BaseException | None] = [problem]
    seen: set[int] = set()
    while chain:
        error = chain.pop()
        if error is not None and id(error) not in seen:  # a game may chain exceptions in a circle
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
            chain += [error.__cause__, error.__context__, *members]


def _struct_of(model: type[BaseModel]) -> type[msgspec.Struct]:
    """Returns the model's fields and their types, without the bounds of their values."""
    fields = [(name, _shape_of(field.annotation), *(() if field.is_required() else (field.default,)))
              for name, field in model.model_fields.items()]
    return msgspec.defstruct(model.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _shape_of(annotation: Any) -> Any:
    if isinstance(annotation, type):
        return _struct_of(annotation) if issubclass(annotation, BaseModel) else annotation
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape_of(arguments[0])
    shapes = tuple(_shape_of(each) for each in arguments)
    return Union[shapes] if origin in (Union, UnionType) else origin[shapes]  # noqa: UP007 - of any number


def _malformed(message: str) -> Problem:
    """Returns the problem of an element that msgspec refuses, with the field that msgspec's message names:
    `actions.1`."""
    place, name = _PLACE.search(message), _NAME.search(message)
    parts = [*(re.findall(r"\w+", place[1]) if place else ()), *([name[1]] if name else ())]
    return Problem("malformed", message, field=".".join(parts) or None)


def _split(body: bytes) -> list[bytes]:
    try:
        parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    except NOT_JSON as error:
        raise Problem("malformed", f"the body is not a JSON list: {error}") from None
    if len(parts) > MAX_BATCH:
        raise Problem("too_large", f"{len(parts)} elements; at most {MAX_BATCH} in one request")
    return [bytes(part) for part in parts]
