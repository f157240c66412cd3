"""The HTTP API through ASGI; tests/integration uses sockets."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from toy_environment import ToyEnvironment, solution

from envservice.server.app import Settings, create_app
from envservice.wire import MAX_ACTION, MAX_ACTIONS, MAX_BATCH, MAX_BODY
from services.telemetry.catalogue import CATALOGUE

TASK = "toy/train/00"


def client_of(**settings: Any) -> httpx.AsyncClient:
    app = create_app(ToyEnvironment(), Settings(**settings))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://toy", timeout=60)


@pytest.fixture(params=[False, True], ids=["inline", "threaded"])
async def http(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(threaded=request.param) as client:
        yield client


def reset(episode: str = "e", task: str = TASK) -> dict[str, Any]:
    return {"episode_id": episode, "task": task}


def step(actions: list[str], action: str, digest: str, episode: str = "e") -> dict[str, Any]:
    return {**reset(episode), "actions": actions, "action": action, "digest": digest}


async def test_a_game_is_played_from_reset_to_close(http: httpx.AsyncClient):
    (now,) = (await http.post("/v1/episodes:reset", json=[reset()])).json()
    done: list[str] = []
    for action in solution(TASK):
        (now,) = (await http.post("/v1/episodes:step", json=[step(done, action, now["digest"])])).json()
        done.append(action)
    assert now["won"]
    assert set(now) == {"observation", "admissible_actions", "reward", "done", "won", "info", "digest"}
    for closed in (True, False):
        assert (await http.post("/v1/episodes:close", json=[{"episode_id": "e"}])).json() == [{"closed": closed}]


async def test_one_bad_element_never_spoils_the_others(http: httpx.AsyncClient):
    bad = [reset("b", "toy/train/99"), {"episode_id": 7, "task": TASK}, reset("c", "toy/train/broken"), 3, {}]
    reply = await http.post("/v1/episodes:reset", json=[reset("a"), *bad, reset("d")])
    assert reply.status_code == 200
    results = reply.json()
    assert results[0]["observation"] == results[6]["observation"]
    assert [(r["type"], r["status"], r["field"]) for r in results[1:6]] == [
        ("unknown_task", 404, "task"), ("malformed", 422, "episode_id"),
        ("env_fault", 500, None), ("malformed", 422, None), ("malformed", 422, "episode_id"),
    ]


async def test_a_rebuilt_session_is_named_in_the_header_and_its_result_is_the_same(http: httpx.AsyncClient):
    (first,) = (await http.post("/v1/episodes:reset", json=[reset("a")])).json()
    other = step([], "go on", first["digest"], "b")
    reply = await http.post("/v1/episodes:step", json=[step([], "go on", first["digest"], "a"), other])
    assert reply.headers["gagpo-replays"] == "1"
    assert reply.json()[0] == reply.json()[1]


@pytest.mark.parametrize(("element", "field"), [
    ({"action": "x" * (MAX_ACTION + 1)}, "action"), ({"actions": [""] * (MAX_ACTIONS + 1)}, "actions"),
    ({"actions": ["a", 1]}, "actions.1"), ({"surprise": 1}, "surprise"), ({"episode_id": "x" * 201}, "episode_id"),
])
async def test_a_malformed_field_is_named(element: dict[str, Any], field: str):
    async with client_of() as http:
        (result,) = (await http.post("/v1/episodes:step", json=[{**step([], "", "d"), **element}])).json()
    assert (result["type"], result["field"]) == ("malformed", field)


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b"null", b"\xff", b'[{"episode_id":"\\ud800"}'])
async def test_a_body_that_is_not_a_list_is_refused_whole(body: bytes):
    async with client_of() as http:
        reply = await http.post("/v1/episodes:step", content=body)
    assert (reply.status_code, reply.json()["type"]) == (422, "malformed")


async def test_bodies_and_lists_are_bounded():
    async with client_of() as http:
        many = await http.post("/v1/episodes:reset", json=[reset(str(n)) for n in range(MAX_BATCH + 1)])
        assert (many.status_code, many.json()["type"]) == (413, "too_large")
        none = await http.post("/v1/episodes:reset", json=[])
        assert (none.status_code, none.json()) == (200, [])

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(MAX_BODY // 2**20 + 1):
                yield b" " * 2**20

        for content in (endless(), b" " * (MAX_BODY + 1)):
            assert (await http.post("/v1/episodes:step", content=content)).status_code == 413


async def test_a_full_server_says_when_to_ask_again():
    async with client_of(max_sessions=1) as http:
        reply = await http.post("/v1/episodes:reset", json=[reset("a"), reset("b")])
        assert (reply.status_code, reply.json()[1]["status"]) == (200, 503)
        reply = await http.post("/v1/episodes:reset", json=[reset("c"), reset("b")])
        assert (reply.status_code, reply.headers["retry-after"], reply.json()["type"]) == (503, "5", "full")


async def test_the_token_guards_all_but_the_probe():
    async with client_of(token="secret") as http:
        assert (await http.get("/healthz")).status_code == 200
        for given in ("", "Bearer wrong", "secret", "Bearer é"):
            reply = await http.get("/v1/info", headers={"authorization": given.encode()})
            assert (reply.status_code, reply.json()["type"]) == (401, "unauthorized")
        assert (await http.get("/metrics", headers={"authorization": "Bearer secret"})).status_code == 200


async def test_info_and_tasks_describe_the_environment():
    environment = ToyEnvironment()
    async with client_of() as http:
        info = (await http.get("/v1/info")).json()
        assert info == {
            "name": "toy", "engine": "corridor", "version": "1", "replay": "pure",
            "splits": {name: {"tasks": 20, "digest": environment.digest(name)} for name in ("test", "train", "valid")}}
        tasks = (await http.get("/v1/tasks/train")).json()
        assert tasks == {"split": "train", "digest": environment.digest("train"), "tasks": environment.tasks("train")}
        missing = await http.get("/v1/tasks/none")
        assert (missing.status_code, missing.json()["type"], missing.json()["field"]) == (404, "not_found", "split")
        assert (await http.get("/v2")).json()["type"] == "not_found"
        assert (await http.get("/v1/episodes:step")).json()["type"] == "method_not_allowed"


async def test_metrics_count_what_happened(http: httpx.AsyncClient):
    (first,) = (await http.post("/v1/episodes:reset", json=[reset("a")])).json()
    await http.post("/v1/episodes:step", json=[step([], "go on", first["digest"], "b"), {}])
    lines = set((await http.get("/metrics")).text.splitlines())
    assert lines >= {
        "gagpo_env_resets_total 1.0", "gagpo_env_steps_total 1.0", "gagpo_env_replays_total 1.0",
        'gagpo_env_errors_total{type="malformed"} 1.0', "gagpo_env_sessions 2.0",
        'gagpo_env_errors_total{type="full"} 0.0', 'gagpo_env_request_seconds_count{route="/v1/episodes:step"} 1.0',
        'gagpo_env_request_seconds_count{route="/v1/episodes:close"} 0.0',
        'gagpo_env_reset_seconds_count{environment="toy"} 1.0', "gagpo_env_sessions_limit 1024.0",
        'gagpo_env_step_seconds_count{environment="toy"} 0.0', 'gagpo_env_replay_seconds_count{environment="toy"} 1.0'}
    (resident,) = [float(line.split()[1]) for line in lines if line.startswith("gagpo_env_resident_memory_bytes ")]
    assert 1e7 < resident < 1e11


async def test_each_refused_request_is_counted_once():
    """A request without the token; an element among others; a request that is refused as a whole, elements and all."""
    async with client_of(token="secret", max_sessions=1) as http:
        allowed = {"authorization": "Bearer secret"}

        async def refused() -> set[str]:
            lines = (await http.get("/metrics", headers=allowed)).text.splitlines()
            return {line for line in lines if line.startswith("gagpo_env_errors_total") and not line.endswith(" 0.0")}

        assert await refused() == set()
        await http.get("/v1/info")
        assert await refused() == {'gagpo_env_errors_total{type="unauthorized"} 1.0'}
        for episodes, full in (("ab", 1), ("cd", 2)):
            await http.post("/v1/episodes:reset", json=[reset(episode) for episode in episodes], headers=allowed)
            assert await refused() == {'gagpo_env_errors_total{type="unauthorized"} 1.0',
                                       f'gagpo_env_errors_total{{type="full"}} {full}.0'}


async def test_sessions_whose_lease_ends_are_counted():
    async with client_of(lease_s=0.0) as http:
        for episode in "ab":
            await http.post("/v1/episodes:reset", json=[reset(episode)])
        lines = (await http.get("/metrics")).text.splitlines()
    assert {"gagpo_env_sessions 1.0", "gagpo_env_sessions_expired_total 1.0"} <= set(lines)


async def test_a_server_exports_what_the_catalogue_declares_and_no_more():
    async with client_of() as http:
        text = (await http.get("/metrics")).text
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert shown == {name for name, one in CATALOGUE.items() if "environment" in one.roles}
