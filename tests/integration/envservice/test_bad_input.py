"""Wrong input of people and programs gets a typed 4xx and disturbs no other game.

The document's own generator makes requests of every kind and breaks them in every way that it knows; the mistakes that
it cannot know of, of sessions and their histories, are listed by hand.
"""

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import schemathesis
from container import HEADERS, missing, running
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from envservice.wire import MAX_ACTION, MAX_ACTIONS, STATUS
from lab.contracts import API_FILE

FAMILIES = ("alfworld", "webshop", "search", "scienceworld")
EXAMPLES = settings(
    max_examples=20, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture])
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
CALL_S = 60.0
"""Deadline in seconds, for a machine that may be busy."""
published = schemathesis.openapi.from_path(API_FILE)


@contextmanager
def served(name: str) -> Iterator[str]:
    """Yields the URL of `gagpo serve-env` over a family's own games."""
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--config", "alfworld-tiny", "--port", "0",
               f"env.name={name}", "env.memory_gb=1"]
    server = subprocess.Popen([*command, "--exit-with-parent", str(os.getpid())], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().rpartition(" on ")[2].strip()
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture(scope="module", params=["process", "container"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields the URL of an ALFWorld server."""
    with placed("alfworld", request.param) as address:
        yield address


@contextmanager
def placed(name: str, place: str) -> Iterator[str]:
    """A family's server as a process or in its container; skips where there can be none."""
    if place == "container":
        if reason := missing(name):
            pytest.skip(reason)
        with running(name, "--memory", "2g") as container:
            yield container.url
        return
    if name == "scienceworld" and not (shutil.which("java") and importlib.util.find_spec("scienceworld")):
        pytest.skip("Java or the simulator is not installed")
    with served(name) as address:
        yield address


@published.parametrize()
@EXAMPLES
def test_nothing_that_the_document_can_think_of_breaks_the_server(case: schemathesis.Case, url: str):
    reply = case.call(base_url=url, timeout=CALL_S, headers=HEADERS)
    case.validate_response(reply, checks=CHECKS)
    answer = reply.json() if reply.headers["content-type"] == ["application/json"] else None
    if reply.status_code == 200 and isinstance(answer, list):
        assert [one for one in answer if one.get("status", 200) >= 500] == []


class Game:
    """One game on a server, played element by element without our client."""

    def __init__(self, http: httpx.AsyncClient, task: str, episode: str) -> None:
        self.http = http
        self.me = {"episode_id": episode, "task": task}
        self.actions: list[str] = []
        self.seen: list[dict[str, Any]] = []

    async def reset(self) -> None:
        (first,) = (await self.http.post("/v1/episodes:reset", json=[self.me])).json()
        assert "type" not in first, first
        self.actions, self.seen = [], [first]

    def step(self, action: str = "look", **changes: Any) -> dict[str, Any]:
        """Returns the element of the next step, with mistakes."""
        kept = {"actions": self.actions, "transcript": self.seen[1:] or None, "digest": self.seen[-1]["digest"]}
        return {**self.me, **kept, "action": action, **changes}

    async def go(self, action: str) -> None:
        """Takes a step without mistakes."""
        (result,) = (await self.http.post("/v1/episodes:step", json=[self.step(action)])).json()
        assert "type" not in result, result
        self.actions = [*self.actions, action]
        self.seen.append(result)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    """Provides the URL of each family's server."""
    with placed(request.param, "process") as address:
        yield address


@pytest.fixture
async def http(family: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=family, timeout=CALL_S, trust_env=False, headers=HEADERS) as client:
        yield client


@pytest.fixture
async def game(http: httpx.AsyncClient) -> AsyncIterator[Game]:
    """Provides a game that has begun, and closes it at the end."""
    split = next(iter((await http.get("/v1/info")).json()["splits"]))
    task = (await http.get(f"/v1/tasks/{split}")).json()["tasks"][0]
    one = Game(http, task, "victim")
    await one.reset()
    yield one
    await http.post("/v1/episodes:close", json=[{"episode_id": "victim"}])


async def kinds(http: httpx.AsyncClient, verb: str, *elements: Any) -> list[str | None]:
    """Returns the type of each element's problem, None for a result. Each type has its own 4xx status."""
    reply = await http.post(f"/v1/episodes:{verb}", json=elements)
    assert reply.status_code == 200, reply.text
    for element in reply.json():
        assert "type" not in element or element["status"] == STATUS[element["type"]] < 500, element
    return [element.get("type") for element in reply.json()]


async def test_a_step_that_is_none_is_malformed_and_says_where(game: Game):
    wrong = {
        "action": [None, 3, ["look"], {"look": 1}, "x" * 2**20, "x" * (MAX_ACTION + 1)],
        "actions": [None, "look", [1], ["x" * 2**20], ["look"] * (MAX_ACTIONS + 1), {}],
        "episode_id": [None, "", 7, "e" * 201], "task": [None, "", 7, "t" * 401],
        "digest": [None, "", 7, "d" * 201], "transcript": ["", [{}], [1], {}],
    }
    for field, values in wrong.items():
        for value in values:
            element = game.step(**{field: value})
            assert await kinds(game.http, "step", element) == ["malformed"], (field, str(value)[:50])
            del element[field]
            assert field == "transcript" or await kinds(game.http, "step", element) == ["malformed"]
    await game.go("look")


@pytest.mark.parametrize("steps", [0, -1, 12, 10**9, 10**400, 1e308, "many", True, None, [], {}], ids=str)
async def test_no_client_sets_how_long_an_episode_may_be(steps: Any, game: Game):
    elements = {"reset": game.me, "step": game.step(), "close": {"episode_id": "victim"}}
    for verb, element in elements.items():
        (answer,) = (await game.http.post(f"/v1/episodes:{verb}", json=[{**element, "max_steps": steps}])).json()
        assert (answer["type"], answer["status"], answer["field"]) == ("malformed", 422, "max_steps")
    await game.go("look")


@pytest.mark.parametrize(("body", "status"), [
    (b"", 422), (b"{}", 422), (b"[" * 300_000, 422), (b'[{"a":' * 100_000, 422), (b"[1" + b"0" * 10**6 + b"]", 200),
    (b'["\\ud800"]', 422), (b"[NaN]", 422), (b"\xff\xfe", 422), (b" " * 2**23, 413), (b'[{"episode_id":"\x00"}]', 422),
])
def test_a_body_of_nonsense_is_refused(body: bytes, status: int, url: str):
    for verb in ("reset", "step", "close"):
        reply = httpx.post(f"{url}/v1/episodes:{verb}", content=body, timeout=CALL_S, trust_env=False, headers=HEADERS)
        assert reply.status_code == status, reply.text[:200]
        for one in reply.json() if status == 200 else [reply.json()]:
            assert one["type"] == ("too_large" if status == 413 else "malformed")


async def test_an_unknown_task_is_unknown_whatever_it_looks_like(game: Game):
    name, split, one = game.me["task"].split("/", 2)
    unknown = [
        "x", "/", "~", "%s%n", "a\0b", "\u202e", "é" * 400, "../../etc/passwd", name, f"{name}/", f"{name}/{split}/",
        f"{name}/{split}/../{split}/{one}", f"{name}/{split}/{one}/", f"{name}/{split}/-1", f"{name}/{split}/999999999",
        f"{name}/{split}/1e3", f" {name}/{split}/{one}", f"{name}/{split}/{one}\n", f"{name}/none/{one}",
        f"other/{split}/{one}"]
    tasks = [{"episode_id": "e", "task": task} for task in unknown]
    for verb, elements in (("reset", tasks), ("step", [{**game.step(), **task} for task in tasks])):
        assert await kinds(game.http, verb, *elements) == ["unknown_task"] * len(unknown)


async def test_with_a_forged_session_id_nobody_learns_or_changes_anything(game: Game):
    await game.go("look")
    elsewhere = (await game.http.get(f"/v1/tasks/{game.me['task'].split('/')[1]}")).json()["tasks"][1]
    forged = [game.step(task=elsewhere), game.step(actions=["other"]), game.step(actions=[], action="other"),
              game.step(digest=f"{game.seen[0]['digest'][:-4]}0000")]
    reply = await game.http.post("/v1/episodes:step", json=forged)
    assert [one["type"] for one in reply.json()] == ["conflict"] * 2 + ["replay_diverged"] * 2
    for one in game.seen:
        assert one["observation"] not in reply.text
        assert one["digest"] not in reply.text
    assert await kinds(game.http, "step", game.step(digest="other@1:00")) == ["engine_mismatch"]
    assert await kinds(game.http, "close", {"episode_id": "nobody"}) == [None]
    seen, twin = game.seen, Game(game.http, game.me["task"], "undisturbed")
    await game.go("look")
    await twin.reset()
    for action in game.actions:
        await twin.go(action)
    assert twin.seen == seen
    await game.http.post("/v1/episodes:close", json=[{"episode_id": "undisturbed"}])


async def test_a_step_with_the_wrong_index_is_a_conflict_or_a_divergence(game: Game):
    await game.go("look")
    await game.go("look")
    ahead = game.step(actions=["look"] * 3, transcript=[*game.seen[1:], game.seen[-1]])
    behind = game.step(actions=["look"], action="other", transcript=None)
    first = game.step(actions=[], transcript=None)
    rewritten = {**behind, "digest": game.seen[1]["digest"]}
    assert await kinds(game.http, "step", behind, first, rewritten, ahead) == [
        "replay_diverged", "replay_diverged", "conflict", "replay_diverged"]
    await game.go("look")


async def test_of_concurrent_steps_on_one_session_one_is_taken(game: Game):
    async def send(action: str) -> dict[str, Any]:
        (result,) = (await game.http.post("/v1/episodes:step", json=[game.step(action)])).json()
        return result

    results = await asyncio.gather(*(send(f"look {number % 8}") for number in range(24)))
    taken = [result for result in results if "type" not in result]
    assert [one["type"] for one in results if one not in taken] == ["conflict"] * 21
    assert len(taken) == 3, "the same action, sent three times"
    assert taken[0] == taken[1] == taken[2]
    await game.reset()
    await game.go("look")
