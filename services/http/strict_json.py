"""A route of FastAPI's that reads JSON as RFC 8259 has it. Only the files of applications import this."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

MAX_FIELDS = 256
"""The most fields of a body. The dialects of models' APIs have fewer than 100."""


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = msgspec.json.decode(await self.body())
        if isinstance(body, dict) and len(body) > MAX_FIELDS:  # pydantic would build an error for each unknown one
            raise HTTPException(413, f"the body has {len(body)} fields; at most {MAX_FIELDS}")
        return body


class StrictRoute(APIRoute):
    """Answers 400 to NaN, to Infinity and to half of a surrogate pair, which Python's own reader of JSON lets through:
    an answer in JSON could not repeat them.

    Answers 413 to more than MAX_FIELDS fields. Use it as `app.router.route_class`, before the routes are added.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly
