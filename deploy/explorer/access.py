"""Who may look: a bearer token or its cookie, a Host of this machine, and headers that let no page run foreign code."""

from __future__ import annotations

import hmac
import re
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.config.tree import EXPLORE_TOKEN_VARIABLE

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
PORT = re.compile(r":\d+$")
LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Around the whole application. With a token every path asks for it; without one only a Host of this machine is
    answered, so that no web page elsewhere can point a name of its own at this server (DNS rebinding)."""

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
        """None: let in."""
        if self._token is None:
            host = PORT.sub("", request.headers.get("host", ""))
            return None if host in LOCAL else PlainTextResponse("this explorer answers to localhost alone", 421)
        if given := request.query_params.get("token"):
            return self._admit(request, given)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if any(self._right(text) for text in (bearer, request.cookies.get(COOKIE, "")) if text):
            return None
        return PlainTextResponse(
            f"a token is needed: open this address with ?token=... (${EXPLORE_TOKEN_VARIABLE} where the explorer "
            "runs), or send it as a bearer token", 401, {"www-authenticate": "Bearer"})

    def _admit(self, request: Request, given: str) -> Response:
        """The token moves from the address, which is shown and logged, into a cookie that no script can read."""
        if not self._right(given):
            return PlainTextResponse("this is not the token", 401)
        rest = [(key, value) for key, value in parse_qsl(request.url.query, keep_blank_values=True) if key != "token"]
        path = "/" + request.url.path.lstrip("/")  # never //host, which would lead elsewhere
        reply = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        reply.set_cookie(COOKIE, given, max_age=YEAR_S, httponly=True, samesite="strict",
                         secure=request.url.scheme == "https")
        return reply

    def _right(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token.encode())
