"""A route of FastAPI's that reads JSON as RFC 8259 has it. Only the files of applications import this."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response


class _StrictRequest(Request):
    async def json(self) -> Any:
        return msgspec.json.decode(await self.body())


class StrictRoute(APIRoute):
    """Answers 400 to NaN, to Infinity and to half of a surrogate pair, which Python's own reader of JSON lets through.

    An answer could not hold what came of them. Use it as `app.router.route_class`, before the routes are added.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly
