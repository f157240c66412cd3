"""OpenEnv's protocol with our client and our server over real WebSockets."""

import asyncio
import contextlib
import dataclasses
import sys
import threading
import weakref

import httpx
import msgspec
import numpy as np
import pytest
from toy_environment import ToyEnvironment
from waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from envservice.adapters.openenv import OpenEnvGame, openenv_spec, read_tool_result
from envservice.adapters.openenv_server import OpenEnvServer
from services.config.env import EnvSection
from services.errors import EnvFault, Unavailable, UserError
from services.http.server import bind


@contextlib.contextmanager
def serving(**settings):
    """Serves the toy environment in a thread, and yields its URL."""
    listener, loop = bind("127.0.0.1", 0), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start():
        return await OpenEnvServer(**{"environment": ToyEnvironment(), "limit": 4, **settings}).start(listener)

    async def stop():
        server.close()
        await server.wait_closed()

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.fixture(scope="module")
def url():
    with serving() as made:
        yield made


def told(socket, message) -> dict:
    socket.send(message if isinstance(message, str) else msgspec.json.encode(message).decode())
    return msgspec.json.decode(socket.recv(60))


def test_our_environment_is_played_through_openenv_as_it_is_without(url):
    spec = openenv_spec(url, name="far", max_steps=20, sizes=(5, 2, 2))
    spec.reachable(EnvSection())
    far = spec.open(EnvSection()).open("far/train/00000003")
    environment = ToyEnvironment()
    near = environment.open(environment.tasks("train")[3])
    now, same = far.reset(), near.reset()
    while not now.done:
        assert (now.observation, now.admissible_actions) == (same.observation, same.admissible_actions)
        action = next(a for a in ("open door", "take key", "go on", "go back") if a in now.admissible_actions)
        now, same = far.step(action), near.step(action)
    assert (now.observation, now.reward, now.won) == (same.observation, 1.0, True)


@pytest.mark.parametrize("field", [{"reward": float("nan")}, {"done": None}, {"observation": "\ud800"}])
def test_an_outcome_that_no_answer_can_hold_is_an_error_and_no_reward_of_zero(field):
    class Odd(ToyEnvironment):
        def open(self, task):
            session = super().open(task)
            usual = session.step
            session.step = lambda action: dataclasses.replace(usual(action), **field)
            return session

    with serving(environment=Odd()) as url:
        game = OpenEnvGame(url)
        game.reset(seed=0)
        with pytest.raises(EnvFault, match="EXECUTION_ERROR"):
            game.step("go on")
        assert game.reset(seed=0)  # the connection lives


def test_a_reward_may_be_a_number_of_numpy():
    class Measured(ToyEnvironment):
        def open(self, task):
            session = super().open(task)
            usual = session.step
            session.step = lambda action: dataclasses.replace(usual(action), reward=np.float64(0.5))
            return session

    with serving(environment=Measured()) as url:
        game = OpenEnvGame(url)
        game.reset(seed=0)
        assert game.step("go on")[1] == 0.5


def test_a_game_that_leaves_by_sys_exit_loses_its_own_episode_alone():
    """It ended the server with all its sessions."""
    class Leaving(ToyEnvironment):
        def open(self, task):
            session = super().open(task)
            session.step = lambda action: sys.exit(3)
            return session

    with serving(environment=Leaving()) as url:
        game, other = OpenEnvGame(url, seconds=20), OpenEnvGame(url, seconds=20)
        for one in (game, other):
            one.reset(seed=0)
        with pytest.raises(EnvFault, match=r"SystemExit: 3.*EXECUTION_ERROR"):
            game.step("go on")
        assert other.reset(seed=1)
        assert OpenEnvGame(url, seconds=20).reset(seed=2)


def test_each_mistake_of_a_client_is_an_error_and_the_session_goes_on(url):
    with connect(f"ws{url.removeprefix('http')}/ws") as socket:
        for message, code in (("{", "INVALID_JSON"), ("[" * 5000, "INVALID_JSON"),
                              ("[]", "VALIDATION_ERROR"), ({"type": "fly"}, "UNKNOWN_TYPE"),
                              ({"type": []}, "UNKNOWN_TYPE"),
                              ({"type": "step", "data": {"action": "go on"}}, "EXECUTION_ERROR"),
                              ({"type": "reset", "data": {"task": "toy/train/none"}}, "VALIDATION_ERROR"),
                              ({"type": "reset", "data": {"split": "none"}}, "VALIDATION_ERROR")):
            answer = told(socket, message)
            assert (answer["type"], answer["data"]["code"]) == ("error", code), message
        first = told(socket, {"type": "reset", "data": {"task": "toy/train/00", "episode_id": "mine"}})
        assert first["data"]["observation"]["text"] == "You stand in a corridor. Place 0."
        assert told(socket, {"type": "step", "data": {"action": 7}})["data"]["code"] == "VALIDATION_ERROR"
        assert told(socket, {"type": "step", "data": {"action": "jump"}})["data"]["done"] is False
        assert told(socket, {"type": "state"})["data"] == {
            "episode_id": "mine", "step_count": 1, "task": "toy/train/00"}
        broken = told(socket, {"type": "step", "data": {"action": "crash"}})
        assert broken["data"]["message"] == "EnvFault: the engine broke"
        assert told(socket, {"type": "step", "data": {"action": "go on"}})["data"]["code"] == "EXECUTION_ERROR"
        assert told(socket, {"type": "reset", "data": {"seed": 1}})["type"] == "observation"


def test_a_game_is_closed_in_the_thread_that_plays_it():
    """A slow one held up the connections of all clients, and SQLite refuses another thread."""
    closed = []

    class Closing(ToyEnvironment):
        def open(self, task):
            session = super().open(task)
            weakref.finalize(session, lambda: closed.append(threading.current_thread().name)).atexit = False
            return session

    with serving(environment=Closing()) as url:
        with connect(f"ws{url.removeprefix('http')}/ws") as socket:
            assert told(socket, {"type": "reset"})["type"] == "observation"
            assert closed == []
        wait_until(lambda: bool(closed))
    assert [name.split("_")[0] for name in closed] == ["engine"]


def test_a_full_server_says_so_and_takes_the_next_when_one_leaves():
    with serving(limit=1) as url:
        address = f"ws{url.removeprefix('http')}/ws"
        with connect(address) as first:
            assert told(first, {"type": "reset"})["type"] == "observation"
            with connect(address) as second:
                assert msgspec.json.decode(second.recv(60))["data"]["code"] == "CAPACITY_REACHED"
        for _ in range(200):  # the server notices the end of a connection a little later than its client
            with connect(address) as third, contextlib.suppress(ConnectionClosed):  # it is full
                if told(third, {"type": "reset"})["type"] == "observation":
                    return
        pytest.fail("the place of the first client was not freed")


def test_a_client_that_says_nothing_loses_its_place():
    with serving(idle_s=0.01) as url, connect(f"ws{url.removeprefix('http')}/ws") as socket, \
            pytest.raises(ConnectionClosed):
        socket.recv(60)


def test_pages_and_clients_without_the_token_are_refused():
    with serving(token="secret") as url:
        address = f"ws{url.removeprefix('http')}/ws"
        head = {"Authorization": "Bearer secret"}
        for given in ({}, {"additional_headers": head, "origin": "http://page.example"}):
            with pytest.raises(InvalidHandshake), connect(address, **given):
                pass
        with connect(address, additional_headers=head) as socket:
            assert told(socket, {"type": "reset"})["type"] == "observation"
        with httpx.Client(base_url=url, timeout=60) as http:
            assert http.get("/health").json() == http.get("/healthz").json() == {"status": "healthy"}
            assert http.get("/schema").status_code == 401
            assert http.get("/schema", headers=head).json()["action"]["required"] == ["action"]
            assert http.get("/metadata", headers=head).json()["name"] == "toy"
            assert http.get("/else", headers=head).status_code == 404


def test_a_mistake_of_the_server_is_a_fault(url):
    game = OpenEnvGame(url, write=lambda text: {"say": text})
    game.reset(seed=0)
    with pytest.raises(EnvFault, match="VALIDATION_ERROR"):
        game.step("go on")
    with pytest.raises(EnvFault, match="with the fields text, admissible_actions, won, task: KeyError: 'words'"):
        OpenEnvGame(url, read=lambda observation: observation["words"]).reset(seed=0)
    with pytest.raises(Unavailable, match="failed to reset: ConnectionRefusedError"):  # an episode waits for it
        OpenEnvGame("http://127.0.0.1:1").reset(seed=0)
    with pytest.raises(UserError, match="failed to reset: ConnectionRefusedError"):
        openenv_spec("http://127.0.0.1:1", name="far").reachable(EnvSection())


def answered(*parts):
    return {"tool_name": "look", "result": {"content": list(parts)}}


def test_the_texts_of_a_tool_are_read_and_those_of_files_too():
    file = {"type": "resource", "resource": {"uri": "notes://a", "mimeType": "text/plain", "text": "two"}}
    assert read_tool_result(answered({"type": "text", "text": "one"}, file)) == "one\ntwo"


@pytest.mark.parametrize("part", [
    {"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "audio", "data": "AAAA"},
    {"type": "resource", "resource": {"uri": "notes://a", "blob": "AAAA"}}], ids=lambda part: part["type"])
def test_a_part_that_is_no_text_is_refused_and_not_left_out(part):
    """Two pictures without a word would be one state, and the policy would see neither."""
    with pytest.raises(TypeError, match=f"a part of type {part['type']}, and the policy reads text alone"):
        read_tool_result(answered({"type": "text", "text": "one"}, part))
