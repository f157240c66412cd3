"""The environment API over HTTP. No other module of this folder imports FastAPI."""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from envservice.base import Environment
from envservice.server.batches import Batches, Element, Verb
from envservice.server.metrics import ServerMetrics
from envservice.server.sessions import SessionStore
from envservice.wire import (
    MAX_BATCH,
    MAX_BODY,
    REPLAYS_HEADER,
    CloseRequest,
    CloseResult,
    Info,
    Problem,
    ProblemBody,
    ResetRequest,
    SplitInfo,
    StepRequest,
    StepResult,
    TaskList,
)
from services.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one server."""

    max_sessions: int = 1024
    record_bytes: int | None = None
    """Bytes that all sessions together may record, beyond which sessions.py drops some. None: no bound."""
    lease_s: float = 300.0
    """Seconds of idleness after which a session is dropped. Its next step rebuilds it."""
    live_lease_s: float = 3600.0
    """The same for a live session, which nobody can rebuild. `gagpo serve-env` sets it to agent.seconds."""
    token: str | None = None
    """The bearer token that every route except /healthz needs. None: no token is needed."""
    open_metrics: bool = False
    """Whether /metrics needs no token either: Prometheus cannot know the token of each run."""
    call_s: float | None = None
    """Longest time of one call of the environment. If it takes longer, the process ends (watchdog.py). None: no
    bound."""
    threaded: bool = False
    """Whether to step in a separate thread, for engines that take milliseconds."""
    recycle_s: float | None = None
    """Age at which the process restarts itself, give or take a tenth. None: never."""
    recycle_bytes: int | None = None
    """Size of the process's own memory (capacity.own_memory_bytes) at which it restarts itself. None: never."""


def create_app(environment: Environment, settings: Settings) -> FastAPI:
    """Makes the application of one environment. All state is in the application, so a process may have several.

    `state.batches` are its Batches, whose `expire` the caller must call now and then. `state.activity` is the store's
    Activity, by which a watchdog sees a call that hangs.
    """
    store = SessionStore(environment, limit=settings.max_sessions, lease_s=settings.lease_s,
                         live_lease_s=settings.live_lease_s, record_bytes=settings.record_bytes)
    metrics = ServerMetrics(environment.name, store)

    def refuse(_request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        metrics.refused(problem.kind)
        return _problem_response(problem)

    app = FastAPI(
        title="gagpo environment API", version="1", docs_url=None, redoc_url=None,
        description="Replayable sessions: a step carries all that a server needs to rebuild the session it belongs to.",
    )
    app.state.activity = store.activity
    app.state.batches = Batches(store, metrics, threaded=settings.threaded)
    app.include_router(_episodes(app.state.batches, metrics))
    app.include_router(_reads(environment, metrics))
    app.add_exception_handler(Problem, refuse)
    app.add_exception_handler(HTTPException, lambda request, error: refuse(request, _from_http(error)))
    if settings.token is not None:
        paths = {"/healthz", "/metrics"} if settings.open_metrics else {"/healthz"}
        app.add_middleware(_BearerToken, token=settings.token, open_paths=paths, refuse=refuse)
    return app


class _DirectRoute(APIRoute):
    """A route whose function gets the request itself. FastAPI's dependencies cost more than an engine's step."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        return self.endpoint


def _episodes(batches: Batches, metrics: ServerMetrics) -> APIRouter:
    router = APIRouter(prefix="/v1", route_class=_DirectRoute, tags=["episodes"])

    async def answer(request: Request, verb: Verb[Element]) -> Response:
        with metrics.request(request.scope["path"]):
            client, _ = request.scope["client"] or ("", 0)
            reply = await batches.answer(verb, await _read(request), client)
        headers = {REPLAYS_HEADER: ",".join(map(str, reply.rebuilt))} if reply.rebuilt else None
        return Response(reply.body, media_type="application/json", headers=headers)

    @router.post("/episodes:reset", **_documented(ResetRequest, StepResult))
    async def reset(request: Request) -> Response:
        """Start episodes from their first observation, whatever their state.

        Repeating a reset gives its recorded result while the episode has taken no step.
        """
        return await answer(request, batches.reset)

    @router.post("/episodes:step", **_documented(StepRequest, StepResult))
    async def step(request: Request) -> Response:
        """Take one step in each of the episodes; repeating a step gives its recorded result.

        The header `gagpo-replays` lists the positions of the elements whose session was rebuilt.
        """
        return await answer(request, batches.step)

    @router.post("/episodes:close", **_documented(CloseRequest, CloseResult))
    async def close(request: Request) -> Response:
        """Drop sessions. Those that this server does not hold count as closed."""
        return await answer(request, batches.close)

    return router


def _reads(environment: Environment, metrics: ServerMetrics) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/info")
    def info() -> Info:
        """Describe the environment that this server plays."""
        splits: dict[str, SplitInfo] = {}
        for split in environment.splits():
            with suppress(UserError):  # such as a split without a game of the wanted types: it is left out
                splits[split] = SplitInfo(tasks=len(environment.tasks(split)), digest=environment.digest(split))
        return Info(
            name=environment.name, engine=environment.engine, version=environment.version, replay=environment.replay,
            splits=splits)

    @router.get("/v1/tasks/{split}", responses={404: {"model": ProblemBody}})
    def tasks(split: str) -> TaskList:
        """List the tasks of one split, sorted."""
        try:
            return TaskList(split=split, digest=environment.digest(split), tasks=environment.tasks(split))
        except (UserError, KeyError) as error:
            raise Problem("not_found", str(error), field="split") from None

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer as soon as the server takes requests. Probes need no token."""
        return {"status": "ok"}

    @router.get("/metrics", response_class=Response)
    def scrape() -> Response:
        """Metrics as Prometheus text."""
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router


def _documented(element: type[BaseModel], result: Any) -> dict[str, Any]:
    """Returns the OpenAPI entry of a route that reads and writes its bodies itself."""
    items = element.model_json_schema(ref_template="#/components/schemas/{model}")
    items.pop("$defs", None)  # the models that a request refers to are published with the answers
    body = {"type": "array", "maxItems": MAX_BATCH, "items": items}
    errors: dict[int | str, Any] = {status: {"model": ProblemBody} for status in (401, 413, 422, 503)}
    return {
        "response_model": None,
        "responses": {200: {"model": list[result | ProblemBody]}, **errors},
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}},
    }


async def _read(request: Request) -> bytes:
    """Reads the body. Raises Problem as soon as its declared or received size is too large."""
    declared = request.headers.get("content-length", "0")
    chunks: list[bytes] = []
    size = int(declared) if declared.isdecimal() else 0
    if size <= MAX_BODY:
        size = 0
        async for chunk in request.stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_BODY:
                break
    if size > MAX_BODY:
        raise Problem("too_large", f"the body has more than {MAX_BODY} bytes")
    return b"".join(chunks)


def _from_http(error: Exception) -> Problem:
    assert isinstance(error, HTTPException)
    return Problem("method_not_allowed" if error.status_code == 405 else "not_found", str(error.detail))


def _problem_response(problem: Problem) -> Response:
    headers: dict[str, str] = {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(math.ceil(problem.retry_after))
    if problem.kind == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(problem.body(), status_code=problem.status, headers=headers)


class _BearerToken:
    """Middleware that refuses requests without the token. It compares in constant time, before it reads a body."""

    def __init__(self, app: ASGIApp, token: str, open_paths: Set[str],
                 refuse: Callable[[Request, Exception], Response]) -> None:
        self._app = app
        self._open_paths = open_paths
        self._expected = f"Bearer {token}".encode()
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                problem = Problem("unauthorized", "this server asks for its bearer token", field="authorization")
                await self._refuse(Request(scope), problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)
