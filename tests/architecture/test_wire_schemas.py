"""The wire contracts in proto/ equal those that the code generates, so that a change of them is a reviewed decision."""

import json
from typing import Any

import httpx
import jsonschema
import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from envservice.alfworld.environment import AlfworldEnvironment
from envservice.alfworld.tasks import GeneratedGames
from envservice.server.app import Settings, create_app
from lab.contracts import API_FILE, RECORDS_FILE, api_document, record_schemas
from services.records import Drop, Episode, Manifest, Step, Ticket, Version, VersionSpan

VERSION = Version(incarnation=1, step=2, digest="d")
TICKET = Ticket(
    group="eval/2/0.4/7", k=0, size=1, task="alfworld/valid_seen/x", seed=3, kind="eval", exact_version=VERSION,
    temperature=0.4, max_steps=5)
STEP = Step(
    observation="You see a desk.", prompt_ids=np.arange(2, dtype=np.int32), response_ids=np.array([3], np.int32),
    logprobs=np.array([-1.0], np.float32), spans=[VersionSpan(version=VERSION, start=0, end=1)], action="look",
    valid=True, admissible=True, reward=0.0)
RECORDS = {
    "Version": VERSION,
    "Ticket": TICKET,
    "Episode": Episode(
        ticket=TICKET, steps=[STEP], won=True, end="won", worker="w", attempt=1, seconds=0.5, engine="own"),
    "Manifest": Manifest(
        step=1, incarnation=1, groups=["train/00000000"], drops=[Drop(group="train/1", task="x", reason="engine")]),
}


def test_the_schemas_are_what_the_records_generate():
    assert RECORDS_FILE.read_text() == record_schemas(), "python -m lab.contracts, and a line in CHANGELOG"


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_fits_its_schema_and_one_with_a_missing_field_does_not(name):
    schema = json.loads(RECORDS_FILE.read_text())
    one = {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
    value = msgspec.json.decode(msgspec.json.encode(RECORDS[name], enc_hook=np.ndarray.tolist))
    jsonschema.validate(value, one)
    required = schema["$defs"][name]["required"][0]
    with pytest.raises(jsonschema.ValidationError, match="required"):
        jsonschema.validate({key: value[key] for key in value if key != required}, one)

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
