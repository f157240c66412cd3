"""The explorer over HTTP: routes, tokens and errors. The content of its pages comes from pages.py."""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.explorer import filters, pages
from deploy.explorer.groups import Group, credit_input
from deploy.explorer.index import Choice, choose
from deploy.explorer.runs import ExploredRun
from services.amounts import number_of
from services.config.secrets import EXPLORE_TOKEN_VARIABLE
from services.errors import UserError
from services.http.server import Server, bind, server_config
from services.process.addresses import host_port, is_local

COOKIE = "gagpo_explore"
YEAR_S = 365 * 24 * 3600
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                               "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Observations are text that anyone may have written: should escaping ever fail, nothing in them runs."""


class Guard:
    """Wraps the entire application. If there is a token, every request needs it, in a header or a cookie. All answers
    have HEADERS.

    Without a token, services/http/server.py answers only requests for a host name of this machine.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._judge(Request(scope))
        await (refusal or self._app)(scope, receive, with_headers)

    def _judge(self, request: Request) -> Response | None:
        """Returns the answer to a request that is not let in, else None."""
        if self._token is None:
            return None
        if given := request.query_params.get("token"):
            return self._admit(request, given)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if any(self._right(text) for text in (bearer, request.cookies.get(COOKIE, "")) if text):
            return None
        return PlainTextResponse(
            f"a token is needed: open this address with ?token=... (${EXPLORE_TOKEN_VARIABLE} where the explorer "
            "runs), or send it as a bearer token", 401, {"www-authenticate": "Bearer"})

    def _admit(self, request: Request, given: str) -> Response:
        """Moves the token from the address, which is shown and logged, into a cookie that scripts cannot read."""
        if not self._right(given):
            return PlainTextResponse("this is not the token", 401)
        rest = [(key, value) for key, value in parse_qsl(request.url.query, keep_blank_values=True) if key != "token"]
        path = "/" + request.url.path.lstrip("/")  # never //host, which would lead to another server
        reply = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        reply.set_cookie(COOKIE, given, max_age=YEAR_S, httponly=True, samesite="strict",
                         secure=request.url.scheme == "https")
        return reply

    def _right(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())


HERE = Path(__file__).parent


class Pages:
    """The templates, and the runs and groups that addresses name."""

    def __init__(self, runs: Sequence[ExploredRun]) -> None:
        self.runs = list(runs)
        self._templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True,
                                      undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        self._templates.filters.update(filters.FILTERS)

    def run(self, name: str) -> ExploredRun:
        """Returns the run of this name. Raises HTTPException 404."""
        for run in self.runs:
            if run.name == name:
                return run
        raise HTTPException(404, f"This explorer shows no run {name}: it was started with "
                                 f"{' and '.join(run.name for run in self.runs)}.")

    def group(self, name: str, file: str, group: str) -> tuple[ExploredRun, Group]:
        """Returns a run and one of its groups. Raises HTTPException 404."""
        run = self.run(name)
        if (chosen := run.group(file, group)) is None:
            raise HTTPException(404, f"{file}.parquet of {name} holds no group {group}. A step that was taken again "
                                     "after an interruption may hold others: look in the list of groups.")
        return run, chosen

    def show(self, template: str, context: dict[str, Any], *, run: ExploredRun | None = None,
             status: int = 200) -> Response:
        """Returns a page. `run`: the run whose pages the keyboard shortcuts open, by default the first."""
        context = {"run": run or self.runs[0], "runs": self.runs, **context}
        return HTMLResponse(self._templates.get_template(template).render(context), status)


def create_app(runs: Sequence[ExploredRun], token: str | None) -> FastAPI:
    """Returns the application over these runs. `token`: needed by every request; None: only this machine is served."""
    app = FastAPI(title="gagpo explore", docs_url=None, redoc_url=None, openapi_url=None)
    shown = Pages(runs)
    _overview(app, shown)
    _lists(app, shown)
    _lost(app, shown)
    _details(app, shown)
    app.mount("/static", StaticFiles(directory=HERE / "static"))  # last, because a run may be called static

    def missing(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 422
        message = error.detail if isinstance(error, HTTPException) and error.detail != "Not Found" else (
            "There is no such page." if isinstance(error, HTTPException) else
            "A number or the sort order in the address is not valid.")
        return shown.show("error.html", {"message": message, "status_code": status}, status=status)

    def damaged(_: Request, error: Exception) -> Response:
        return shown.show("error.html", {"message": f"{error}.", "status_code": 422}, status=422)

    app.add_exception_handler(UserError, damaged)
    app.add_exception_handler(HTTPException, missing)
    app.add_exception_handler(RequestValidationError, missing)
    app.add_middleware(Guard, token=token)
    return app


def _overview(app: FastAPI, shown: Pages) -> None:
    @app.get("/")
    def home() -> Response:
        return shown.show("home.html", pages.home(shown.runs))

    @app.get("/api/state")
    def state() -> Response:
        return JSONResponse({run.name: {"groups": len(run.groups()), "steps": len(run.metrics),
                                        "evaluations": len(run.evaluations)} for run in shown.runs})

    @app.get("/task")
    def task(id: str, last: Annotated[int, Query(ge=1, le=20)] = 3) -> Response:
        content = pages.task(shown.runs, id, last)
        if not content["columns"]:
            raise HTTPException(404, f"No group of {' or '.join(run.name for run in shown.runs)} played {id}.")
        return shown.show("task.html", content)


def _lists(app: FastAPI, shown: Pages) -> None:
    @app.get("/{name}/groups")
    def groups(name: str, choice: Annotated[Choice, Query()]) -> Response:
        run = shown.run(name)
        return shown.show("groups.html", {"choice": choice, "listed": choose(run.groups(), choice)}, run=run)

    @app.get("/{name}/config")
    def config(name: str) -> Response:
        run = shown.run(name)
        return shown.show("config.html", {"config": run.config_text(), "log": run.log()}, run=run)

    @app.get("/{name}/evaluations")
    def evaluations(name: str, split: str = "", kind: str = "", sort: str = "task", desc: bool = False) -> Response:
        run = shown.run(name)
        content = pages.evaluations(run, split=split, kind=kind, sort=sort, descending=desc)
        return shown.show("evaluations.html", content, run=run)


def _lost(app: FastAPI, shown: Pages) -> None:
    """Adds addresses that redirect to a lost episode."""
    @app.get("/{name}/lost")
    def any_lost(name: str) -> Response:
        if (entry := pages.instructive(shown.run(name).groups())) is None:
            raise HTTPException(404, f"No episode of {name} was lost so far.")
        return lost(name, entry.file, entry.group)

    @app.get("/{name}/lost/{file}/{group:path}")
    def lost(name: str, file: str, group: str) -> Response:
        _, chosen = shown.group(name, file, group)
        if (member := chosen.lost) is None:
            raise HTTPException(404, f"All episodes of group {group} were won.")
        return RedirectResponse(f"/{filters.segment(name)}/episode/{filters.segment(file)}/{member.k}/"
                                f"{filters.segment(group)}", 303)


def _details(app: FastAPI, shown: Pages) -> None:
    @app.get("/{name}/group/{file}/{group:path}")
    def group(name: str, file: str, group: str, k: int | None = None) -> Response:
        run, chosen = shown.group(name, file, group)
        return shown.show("group.html", pages.group(run, chosen, k), run=run)

    @app.get("/{name}/episode/{file}/{k}/{group:path}")
    def episode(name: str, file: str, k: int, group: str) -> Response:
        run, chosen = shown.group(name, file, group)
        if (member := chosen.episode(k)) is None:
            raise HTTPException(404, f"Group {group} has no episode {k}: it has "
                                     f"{', '.join(str(e.k) for e in chosen.episodes)}.")
        return shown.show("episode.html", pages.episode(run, chosen, member), run=run)

    @app.get("/{name}/credit/{file}/{group:path}")
    def credit(name: str, file: str, group: str) -> Response:
        run, chosen = shown.group(name, file, group)
        if run.credit is None:
            raise HTTPException(422, "This file needs the options of the run's estimator, which cannot be read.")
        attachment = f'attachment; filename="{pages.credit_file(chosen)}"'
        return Response(json.dumps(credit_input(chosen, run.credit)), media_type="application/json",
                        headers={"content-disposition": attachment})


DRAIN_S = 2


def serve(runs: Sequence[ExploredRun], *, host: str, port: int, token: str | None) -> None:
    """Serves until SIGTERM or SIGINT. Raises UserError for a port in use, and for a host that others can reach when
    there is no token."""
    if token is None and not is_local(host):
        raise UserError(f"{host} can be reached by others and there is no token",
                        f"set {EXPLORE_TOKEN_VARIABLE}, or bind to 127.0.0.1 and come through ssh -L")
    with contextlib.closing(bind(host, port)) as listener:
        for run in runs:
            groups = run.groups()
            steps = sum(entry.steps for entry in groups)
            print(f"{run.name}: {number_of(len(groups), 'group')}, {number_of(steps, 'step')}", flush=True)
        print(f"exploring on http://{host_port(*listener.getsockname()[:2])}/"
              f"{'?token=$' + EXPLORE_TOKEN_VARIABLE if token else ''}", flush=True)
        Server(explorer_config(runs, token)).run(sockets=[listener])


def explorer_config(runs: Sequence[ExploredRun], token: str | None) -> uvicorn.Config:
    """Returns the server's config; its `app` holds all checks of a request."""
    return server_config(create_app(runs, token), local_only=token is None, timeout_graceful_shutdown=DRAIN_S)
