"""The environment API's schema is frozen, so that a change of it is a reviewed decision."""

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from envservice.alfworld.environment import AlfworldEnvironment
from envservice.alfworld.tasks import GeneratedGames
from envservice.server.app import Settings, create_app
from lab.contracts import API_FILE, api_document

ROUTES = {
    ("/v1/tasks/{split}", "get"), ("/v1/info", "get"), ("/healthz", "get"), ("/metrics", "get"),
    ("/v1/episodes:reset", "post"), ("/v1/episodes:step", "post"), ("/v1/episodes:close", "post"),
}


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    return json.loads(API_FILE.read_text())


def test_the_published_schema_is_the_frozen_one():
    assert api_document() == API_FILE.read_text(), "if the change is meant: python -m lab.contracts"


def test_the_routes_are_those_of_the_interfaces_page(api: dict[str, Any]):
    assert {(path, verb) for path, verbs in api["paths"].items() for verb in verbs} == ROUTES


async def test_requests_and_answers_of_the_direct_routes_match_what_is_published(api: dict[str, Any]):
    """These routes read and write their bodies themselves, so only this test compares them with their schema."""
    environment = AlfworldEnvironment(GeneratedGames())
    transport = httpx.ASGITransport(create_app(environment, Settings()))
    task = {"episode_id": "e", "task": environment.tasks("valid")[0]}
    async with httpx.AsyncClient(transport=transport, base_url="http://env", timeout=60) as http:

        async def ask(verb: str, element: dict[str, Any]) -> dict[str, Any]:
            published = api["paths"][f"/v1/episodes:{verb}"]["post"]
            body = published["requestBody"]["content"]["application/json"]["schema"]
            answer = published["responses"]["200"]["content"]["application/json"]["schema"]
            Draft202012Validator({**body, "components": api["components"]}).validate([element])
            reply = (await http.post(f"/v1/episodes:{verb}", json=[element, {}])).json()
            Draft202012Validator({**answer, "components": api["components"]}).validate(reply)
            assert reply[1]["status"] == 422
            return reply[0]

        first = await ask("reset", task)
        await ask("step", {**task, "actions": [], "action": "look", "digest": first["digest"]})
        await ask("close", {"episode_id": "e"})
