"""OpenEnv servers that break the protocol, over real WebSockets: each failure is a fault that names its cause."""

import contextlib
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest
from websockets.sync.server import serve

from deploy.training.prompting import make_plan
from envservice.adapters.openenv import OpenEnvGame, openenv_spec, openenv_tools_spec
from services.config.env import EnvSection
from services.config.file import default_config
from services.errors import EnvFault, UserError

FULL = {"type": "error", "data": {"message": "1/1 sessions active", "code": "CAPACITY_REACHED"}}
GOOD = {"observation": {"text": "Hello."}, "reward": 0.0, "done": False}


@contextlib.contextmanager
def answering(step, reset=GOOD):
    """Yields the URL of a server that answers with data, or with bytes as they are."""
    def play(connection):
        for message in connection:
            data = reset if msgspec.json.decode(message)["type"] == "reset" else step
            connection.send(data if isinstance(data, bytes) else msgspec.json.encode(
                data if "type" in data else {"type": "observation", "data": data}).decode())

    with serve(play, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(60)


def spec_of(url, **settings):
    return openenv_spec(url, name="bad", seconds=60, **settings)


def step(url, **settings):
    session = spec_of(url, **settings).open(EnvSection()).open("bad/train/00000000")
    session.reset()
    return session.step("go on")


@pytest.mark.parametrize(("changed", "message"), [
    ({"reward": "1"}, "without a number as its reward: .*'reward': '1'"),
    ({"reward": "high"}, "without a number as its reward"),
    ({"reward": [1]}, "without a number as its reward"),
    ({"done": "false"}, "without true or false as its `done`: .*'done': 'false'"),
    ({"done": None}, "without true or false as its `done`"),
    ({"observation": {"text": None}}, "`read` returned NoneType None, and not a text, from an observation of .* text"),
    ({"observation": {"text": ["a"]}}, "`read` returned list"),
], ids=str)
def test_a_part_of_another_type_is_a_fault_and_no_reward(changed, message):
    """The reward "1" counted, `done` of "false" ended the episode, and an observation of null was the text None."""
    with answering(GOOD | changed) as url, pytest.raises(EnvFault, match=message):
        step(url)


@pytest.mark.parametrize("field", ["reward", "done"])
def test_a_step_without_its_reward_or_its_end_is_a_fault(field):
    """Every step had a reward of zero, or no episode ever ended."""
    with answering({key: value for key, value in GOOD.items() if key != field}) as url, \
            pytest.raises(EnvFault, match=field):
        step(url)


def test_a_reward_of_null_is_zero_since_openenv_says_so_of_a_step_without_one():
    with answering(GOOD | {"reward": None}) as url:
        assert step(url).reward == 0.0
    with answering(GOOD | {"reward": True, "done": True}) as url:
        assert (step(url).reward, step(url).won) == (1.0, True)


@pytest.mark.parametrize(("answer", "shown"), [
    (b'{"type": "observation", "data": {"reward": NaN}}', "answered a step with no JSON .*NaN"),
    (b"<html>busy</html>", "answered a step with no JSON .*<html>busy"),
    (b'{"type": "\xff"}', "answered a step with no JSON "),
])
def test_an_answer_that_is_no_json_is_shown(answer, shown):
    with answering(answer) as url, pytest.raises(EnvFault, match=shown):
        step(url)


def test_a_full_server_names_the_settings_that_help():
    """OpenEnv serves one session by default, so all games but one failed, without a word of how to change that."""
    with answering(GOOD, reset=FULL) as url, pytest.raises(EnvFault, match=r"by env.max_sessions or p"):
        step(url)


@pytest.mark.parametrize(("settings", "named"), [
    ({"read": lambda observation: observation["messages"][-1]}, "`read` finds no text .* KeyError: 'messages'"),
    ({"read": lambda observation: observation["text"].index("x")}, "`read` finds no text .* ValueError"),
    ({"begin": lambda number: {"level": object()}}, "`begin` returned .*, which JSON cannot hold"),
    ({"begin": lambda number: {1: 2}[number]}, "KeyError: 0"),
], ids=["field", "list", "fields", "number"])
def test_a_mistake_in_the_functions_of_the_user_is_one_line_before_a_run(settings, named):
    """Most were tracebacks, and the advice was to start a server that was running."""
    with answering(GOOD) as url, pytest.raises(UserError, match=named) as raised:
        spec_of(url, **settings).reachable(EnvSection())
    assert raised.value.fix == "correct `begin` or `read`, or the server"


def test_an_action_that_json_cannot_hold_names_write():
    with answering(GOOD) as url, pytest.raises(EnvFault, match=r"`write` returned .*, which JSON cannot hold"):
        step(url, write=lambda text: {"number": object()})


@pytest.mark.parametrize("tools", ["look", [{"name": "look"}], ["look"]], ids=str)
def test_a_list_of_tools_of_another_form_is_shown(tools):
    with answering(GOOD | {"observation": {"tools": tools}}) as url, \
            pytest.raises(UserError, match=r"lists its tools as .*look.*; each needs a name"):
        openenv_tools_spec(url, name="bad").tools()


def test_a_full_tool_server_is_no_mistake_of_the_user_in_a_worker():
    """Its games held all sessions when a worker started again, which ended the run by advice to start the server."""
    with answering(FULL, reset=FULL) as url:
        spec = openenv_tools_spec(url, name="full")
        assert spec.prompts["full"](2).chat
        with pytest.raises(EnvFault, match="CAPACITY_REACHED"):
            spec.tools()


def test_a_url_of_websockets_is_one_too():
    with answering(GOOD) as url:
        assert step(url.replace("http", "ws")).observation == "Hello."


def test_a_server_that_computes_for_long_is_waited_for_until_the_deadline():
    """One that steps in its event loop answers no ping, so every session of it was cut after 20 s of one slow step."""
    with answering(GOOD) as url:
        game = OpenEnvGame(url, seconds=300)
        assert game._connect().ping_timeout == 300


SERVES = """
import sys
from websockets.sync.server import serve

def play(connection):
    for _ in connection:
        connection.send(sys.argv[1])

with serve(play, "127.0.0.1", 0) as server:
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
"""
HOLDS = """
import sys
from envservice.adapters.openenv import OpenEnvGame

games = [OpenEnvGame(sys.argv[1]) for _ in range(8)]
for game in games:
    game.reset(seed=0)
print("held", flush=True)
sys.stdin.read()
"""


def started(*program):
    return subprocess.Popen([sys.executable, "-c", *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_ends_at_once_though_its_server_hangs():
    """It waited a second for each session in turn, so Ctrl-C and SIGTERM took a minute if there were many."""
    told = msgspec.json.encode({"type": "observation", "data": GOOD}).decode()
    with started(SERVES, told) as server, \
            started(HOLDS, f"http://127.0.0.1:{server.stdout.readline().strip()}") as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            server.send_signal(signal.SIGSTOP)
            since = time.monotonic()
            holder.stdin.close()
            assert holder.wait(60) == 0
            assert time.monotonic() - since < 5
        finally:
            holder.kill()
            server.kill()


SPEC = spec_of("http://127.0.0.1:1")


def test_a_prompting_evaluation_asks_for_the_server_before_it_asks_a_model():
    """It paid for the first calls of games whose retriever was away, and ended by a traceback."""
    config = default_config([f"env.name={__name__}:SPEC", "eval.panel=2"])
    with pytest.raises(UserError, match=r"ConnectionRefused.*; start the OpenEnv server of bad, or correct its URL"):
        make_plan(config, "react", None)
