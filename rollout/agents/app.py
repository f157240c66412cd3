"""The endpoint of agents over HTTP: the policy, the episode's environment, and its reward.

The policy speaks three dialects. Each is translated into a request of a chat completion, so all calls of an episode are
calls of one conversation, whichever dialect they were made in:

    POST /v1/chat/completions    OpenAI's Chat Completions    completions.py
    POST /v1/responses           OpenAI's Responses           responses.py
    POST /v1/messages            Anthropic's Messages         messages.py

An episode is identified by its key, which is the client's API key. Keys are random and live as long as their episode.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.exceptions import HTTPException

from envservice.client.client import Result
from envservice.text.tool_calls import Tool
from envservice.wire import WireModel
from rollout.agents import messages, responses
from rollout.agents.completions import ChatRequest, chunks, reply
from rollout.agents.messages import CountRequest, MessagesRequest
from rollout.agents.refusals import Refused
from rollout.agents.responses import ResponsesRequest
from rollout.agents.session import AgentSession, ChatAnswer, EpisodeOver
from rollout.agents.world import AgentWorld
from services.chat import ChatRefused, TokenUnknown
from services.errors import Fault
from services.http.server import BodyLimit
from services.http.strict_json import StrictRoute
from services.tokenizer import token_bytes

STATE_HEADER = "x-gagpo-state"
"""Header of a call that names the state it is made in."""
OpenEpisode = tuple[AgentSession, AgentWorld | None]
"""The model's and the environment's side of an episode that is being played. None: it has no environment."""
Finder = Callable[[Request], OpenEpisode]


COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
MODEL = {"id": "policy", "object": "model", "created": 0, "owned_by": "gagpo", "type": "model",
         "display_name": "policy", "created_at": "1970-01-01T00:00:00Z"}
"""The only model in the list of models, in the form of OpenAI and of Anthropic. A request may name any model."""
NO_JSON = "the body is no JSON object"
MAX_BODY = 4 * 1024 * 1024
"""The most bytes of one request's body."""
LOOK_S = 0.25
"""Seconds between two checks that the client of a call is still connected."""


class Episodes(Protocol):
    """The episodes that are being played, by their keys."""

    def get(self, key: str, /) -> OpenEpisode | None: ...


class Action(WireModel):
    """An action for the environment."""

    action: str


class EnvironmentCall(WireModel):
    """A call of a tool of the environment."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class Reward(WireModel):
    """A reward for the newest call. `won` says whether the episode counts as solved."""

    reward: float
    won: bool | None = None


def create_app(episodes: Episodes) -> FastAPI:
    """Returns the application. `episodes` maps keys to the episodes that are being played."""
    app = FastAPI(title="gagpo agents", docs_url=None, redoc_url=None, openapi_url=None)
    app.router.route_class = StrictRoute
    app.add_middleware(BodyLimit, most=MAX_BODY)
    episode_of = _finder(episodes)
    _errors(app)
    _model_routes(app, episode_of)
    _anthropic_routes(app, episode_of)
    _world_routes(app, episode_of)
    return app


def request_key(request: Request) -> str:
    """Returns the key that a request carries, as Anthropic's clients send it or as a bearer token, or ""."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return (request.headers.get("x-api-key") or bearer).strip()


def _finder(episodes: Episodes) -> Finder:
    def episode_of(request: Request) -> OpenEpisode:
        episode = episodes.get(request_key(request))
        if episode is None:
            raise Refused(401, "no episode has this key: it is over, or the key is another's", "authentication_error")
        return episode

    return episode_of


def _errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return _error(request, error.status, error.message, error.kind)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:]))
        return _error(request, 400, f"{place}: {first['msg']}" if place else NO_JSON)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        reason = str(error.detail)
        if error.status_code in (404, 405):
            reason = f"there is no {request.method} {request.url.path} here, but {', '.join(_routes(app))}"
        elif error.status_code == 400:  # the body could not be read
            reason = NO_JSON
        return _error(request, error.status_code, reason)

    @app.exception_handler(EpisodeOver)
    async def over(request: Request, error: EpisodeOver) -> JSONResponse:
        return _error(request, 400, str(error),
                      "context_length_exceeded" if error.end == "context" else "episode_over")

    @app.exception_handler(Fault)
    async def fault(request: Request, error: Fault) -> JSONResponse:
        return _error(request, 410, f"the episode ended by a fault: {error}", "episode_failed")


def _routes(app: FastAPI) -> list[str]:
    """Returns each method with its path, such as `POST /v1/messages`."""
    return [f"{method} {route.path}" for route in app.routes if isinstance(route, APIRoute) for method in route.methods]


def _error(request: Request, status: int, message: str, kind: str = "invalid_request_error") -> JSONResponse:
    """Returns an error in the form of the request's dialect."""
    if request.url.path.startswith(MESSAGES):
        return JSONResponse(messages.error_body(status, message, kind), status)
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": kind}}, status)


def _model_routes(app: FastAPI, episode_of: Finder) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [MODEL], "has_more": False, "first_id": MODEL["id"], "last_id": MODEL["id"]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != MODEL["id"]:
            raise Refused(404, f"there is no model {name!r:.60} here: the policy is {MODEL['id']!r}")
        return MODEL

    @app.post(COMPLETIONS, response_model=None)
    async def chat(asked: ChatRequest, request: Request) -> JSONResponse | StreamingResponse:
        llm, _ = episode_of(request)
        answer = await _ask(request, llm, asked)
        completion = reply(answer, asked, partial(token_bytes, llm.text.tokenizer))
        return _stream(chunks(completion, asked)) if asked.stream else JSONResponse(completion)

    @app.post(RESPONSES, response_model=None)
    async def respond(asked: ResponsesRequest, request: Request) -> JSONResponse | StreamingResponse:
        llm, _ = episode_of(request)
        chat = asked.chat(llm.stored)
        answer = await _ask(request, llm, chat)
        response = asked.reply(answer, thought_tokens=llm.thought_tokens(answer))
        if asked.store is not False:
            llm.stored.conversations[response["id"]] = asked.continued(chat, answer)
            llm.stored.items |= {item["id"]: item for item in response["output"]}
        return _stream(_sent(responses.stream_events(response))) if asked.stream else JSONResponse(response)


def _anthropic_routes(app: FastAPI, episode_of: Finder) -> None:
    @app.post(MESSAGES, response_model=None)
    async def message(asked: MessagesRequest, request: Request) -> JSONResponse | StreamingResponse:
        llm, _ = episode_of(request)
        answer = await _ask(request, llm, asked.chat(llm.response_tokens))
        written = asked.reply(answer)
        return _stream(_sent(messages.stream_events(written))) if asked.stream else JSONResponse(written)

    @app.post(f"{MESSAGES}/count_tokens", response_model=None)
    async def count(asked: CountRequest, request: Request) -> dict[str, Any]:
        llm, _ = episode_of(request)
        chat = asked.prompt()
        with _refusing_prompts():
            return {"input_tokens": await llm.count_tokens(chat.conversation, chat.tools)}


@contextlib.contextmanager
def _refusing_prompts() -> Iterator[None]:
    """Raises Refused in place of the errors of a prompt that cannot be written."""
    try:
        yield
    except TokenUnknown as error:
        raise Refused(400, str(error)) from None
    except ChatRefused as error:
        raise Refused(400, f"the chat template refuses the messages ({error})") from None


def _stream(events: Iterable[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream")


def _sent(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yields events as the text of server-sent events, each named by its type."""
    for event in events:
        yield f"event: {event['type']}\ndata: {msgspec.json.encode(event).decode()}\n\n"


async def _ask(request: Request, llm: AgentSession, asked: ChatRequest) -> ChatAnswer:
    """Returns the answer to a request, which is a step of the episode. Raises Refused, EpisodeOver and Fault."""
    if reason := asked.refusal():
        raise Refused(400, reason)
    with _refusing_prompts():
        answer = await _answered(request, llm.chat(
            asked.conversation, tools=asked.tools, max_tokens=asked.limit, state=request.headers.get(STATE_HEADER),
            stop=asked.stops, stop_token_ids=asked.stop_token_ids or (),
            keep_stop=bool(asked.include_stop_str_in_output), calls=asked.tool_choice != "none"))
    if await request.is_disconnected():
        llm.forget(answer)  # the client asks again, and that call is the one that counts
    return answer


async def _answered(request: Request, call: Coroutine[Any, Any, ChatAnswer]) -> ChatAnswer:
    """Returns the answer to a call. If its client disconnects first, cancels the call and raises Refused."""
    asking = asyncio.create_task(call)
    try:
        while not (await asyncio.wait({asking}, timeout=LOOK_S))[0]:
            if await request.is_disconnected() and not asking.done():  # else the answer has come, and _ask forgets it
                raise Refused(499, "the client has left")
        return asking.result()
    finally:
        asking.cancel()


def _world_routes(app: FastAPI, episode_of: Finder) -> None:
    @app.post("/env/reset", response_model=None)
    async def reset(request: Request) -> dict[str, Any]:
        return _outcome(await _world(episode_of(request)).reset())

    @app.get("/env/tools", response_model=None)
    async def tools(request: Request) -> list[Tool]:
        return list(_world(episode_of(request)).tools)

    @app.post("/env/step", response_model=None)
    async def step(action: Action, request: Request) -> dict[str, Any]:
        return await _taken(_world(episode_of(request)).step(action.action))

    @app.post("/env/call", response_model=None)
    async def call(asked: EnvironmentCall, request: Request) -> dict[str, Any]:
        return await _taken(_world(episode_of(request)).call(asked.name, asked.arguments))

    @app.post("/reward", response_model=None)
    async def reward(given: Reward, request: Request) -> dict[str, Any]:
        llm, _ = episode_of(request)
        try:
            llm.earn(given.reward)
        except ValueError as error:
            raise Refused(409, str(error)) from None
        llm.won = llm.won if given.won is None else given.won
        return {"steps": len(llm.steps), "total": llm.total_reward}


def _world(episode: OpenEpisode) -> AgentWorld:
    if episode[1] is None:
        raise Refused(404, "this episode has no environment")
    return episode[1]


async def _taken(step: Awaitable[Result]) -> dict[str, Any]:
    try:
        return _outcome(await step)
    except ValueError as error:
        raise Refused(409, str(error)) from None


def _outcome(result: Result) -> dict[str, Any]:
    return msgspec.to_builtins(result)
