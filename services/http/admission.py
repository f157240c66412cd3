"""Refuses requests beyond a server's capacity, and those that a web page sends to a server on the reader's machine.

If a server has too many requests in work, the next one gets 503 and is told by Retry-After when to ask again.

A browser lets any page send a request to 127.0.0.1. Three headers tell such a request from a program's:

    Host            421 if it names another machine: a page's own name that resolves to this one (DNS rebinding)
    Origin          403 if it is another server's: a page of that server sent the request (CSRF)
    Content-Type    415 unless it is JSON: pages can send forms and plain text without asking

An Upgrade, such as to a websocket, is refused with 400: we speak only HTTP/1.1, and parsers read nothing after it.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from services.process.addresses import is_local

READS = ("GET", "HEAD", "OPTIONS")
RETRY_AFTER_S = 1
"""Seconds after which a request that found no capacity may be sent again."""


class Admission:
    """Wraps an entire application.

    `local_only`: the server has no token, so it answers only a Host of this machine. `capacity`: most requests in work.
    """

    def __init__(self, app: ASGIApp, *, local_only: bool, capacity: int) -> None:
        self._app, self._local_only, self._capacity = app, local_only, capacity
        self._in_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            status, text = refusal
            headers = {"connection": "close"} | ({"retry-after": str(RETRY_AFTER_S)} if status == 503 else {})
            await PlainTextResponse(text, status, headers)(scope, receive, send)
            return
        self._in_work += 1
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            return  # the client left before the answer, which is not an error of the server
        finally:
            self._in_work -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host, origin, kind = headers.get(b"host", b""), headers.get(b"origin"), headers.get(b"content-type")
        if self._local_only and not names_this_machine(host):
            return 421, f"this server has no token, so it answers only to localhost, not to {host!r}"
        if origin is not None and origin.partition(b"://")[2] != host:
            return 403, f"pages of {origin!r} may not use this server"
        if kind is not None and scope["method"] not in READS and kind.partition(b";")[0].strip() != b"application/json":
            return 415, f"send application/json instead of {kind!r}"
        if b"upgrade" in headers:
            return 400, "this server speaks only HTTP/1.1, so send no Upgrade"
        if self._in_work >= self._capacity:
            return 503, "too many requests are in work"
        return None


@lru_cache(maxsize=64)  # parsing an address costs more than everything else here
def names_this_machine(host: bytes) -> bool:
    """Returns whether a Host header, with or without a port, is a loopback address or localhost."""
    try:
        return is_local(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:
        return False
