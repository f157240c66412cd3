"""Lets in whoever has the token, by header or cookie, and sends headers that let no page run foreign code.

Without a token services/http/server.py answers only a Host of this machine.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.config.secrets import EXPLORE_TOKEN_VARIABLE

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
    """Wraps the whole application. If there is a token, every path asks for it."""

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
