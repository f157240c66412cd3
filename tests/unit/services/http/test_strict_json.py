"""Bodies of JSON that are refused before they are validated."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, model_validator

from services.http.strict_json import MAX_FIELDS, StrictRoute

pytestmark = pytest.mark.attack
validated: list[Any] = []


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _seen(cls, body: Any) -> Any:
        validated.append(body)
        return body


app = FastAPI()
app.router.route_class = StrictRoute


@app.post("/")
def read(body: Body) -> str:
    return "read"


@pytest.mark.parametrize(("fields", "status", "seen"), [(0, 200, 1), (MAX_FIELDS, 422, 1), (MAX_FIELDS + 1, 413, 0)])
async def test_a_body_of_very_many_fields_is_not_validated(fields: int, status: int, seen: int):
    validated.clear()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://strict") as http:
        reply = await http.post("/", json={f"x{each}": 0 for each in range(fields)})
    assert (reply.status_code, len(validated)) == (status, seen)
