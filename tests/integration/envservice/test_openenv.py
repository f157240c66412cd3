"""OpenEnv's own package on the other end: its client plays our environments, and its server is an environment."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ports import likely_port
from third_party import PYTHON, needs_third_party

from envservice.adapters.openenv import openenv_spec, openenv_tools_spec
from envservice.registry import open_environment
from envservice.spec import EnvironmentSpec
from envservice.text.tool_calls import ToolCall, written_call
from services.config.env import EnvSection
from services.errors import UserError

pytestmark = [pytest.mark.long, needs_third_party]
PROGRAMS = Path(__file__).parent / "openenv_programs"
ROOT = Path(__file__).parents[3]
DEADLINE_S = 240


def test_its_client_plays_a_game_of_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    environment = open_environment(EnvSection(name="alfworld"))
    task = environment.tasks("valid")[0]
    session = environment.open(task)
    wanted = [session.reset()]
    actions = [wanted[0].admissible_actions[0], "fly to the moon", "look"]
    wanted += [session.step(action) for action in actions]
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--env", "alfworld", "--openenv", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().split()[-1]
            played = subprocess.run([PYTHON, PROGRAMS / "play.py", url, task, *actions], capture_output=True, text=True,
                                    timeout=DEADLINE_S, check=True)
        finally:
            server.terminate()
    told = json.loads(played.stdout)
    assert told["state"]["step_count"] == 3
    assert told["state"]["task"] == task
    for one, outcome in zip(told["results"], wanted, strict=True):
        assert one == {"reward": outcome.reward, "done": outcome.done, "observation": {
            "text": outcome.observation, "admissible_actions": outcome.admissible_actions, "won": outcome.won,
            "task": task}}


@contextlib.contextmanager
def serving(program: str, spec_of: Callable[[str], EnvironmentSpec]):
    """The spec of a game on OpenEnv's own server, once the server answers."""
    port = likely_port()
    with subprocess.Popen([PYTHON, PROGRAMS / program, str(port)]) as server:
        try:
            end = time.monotonic() + DEADLINE_S
            while True:
                try:
                    spec = spec_of(f"http://127.0.0.1:{port}")
                    spec.reachable(EnvSection())
                    break
                except UserError:
                    assert server.poll() is None, "the server ended"
                    assert time.monotonic() < end
                    time.sleep(0.1)
            yield spec
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def guessing():
    def spec_of(url: str) -> EnvironmentSpec:
        return openenv_spec(url, name="guess", write=lambda text: {"number": text}, max_steps=5, sizes=(9, 9, 9),
                            read=lambda observation: observation["said"], replayable=True)

    with serving("guess.py", spec_of) as spec:
        yield spec


def test_its_server_is_an_environment(guessing):
    environment = guessing.open(EnvSection())
    guessing.check(environment, "guess/train/00000004")
    session = environment.open("guess/train/00000004")
    assert session.reset().observation == "Guess a number from 1 to 9."
    outcomes = [session.step(action) for action in ("3", "a word", "7", "5")]
    assert [one.observation for one in outcomes] == ["More.", "More.", "Less.", "Right."]
    assert [(one.reward, one.done, one.won) for one in outcomes] == [(0.0, False, False)] * 3 + [(1.0, True, True)]
    assert [environment.open("guess/train/00000001").reset().observation for _ in range(20)] == [
        "Guess a number from 1 to 9."] * 20, "sessions that are forgotten are closed: the server takes 8 at once"


def test_its_tools_are_those_of_an_environment():
    """Calls that go wrong are answered: by the server, and what is no call by ourselves."""
    with serving("tools.py", lambda url: openenv_tools_spec(url, name="counting")) as spec:
        (add,) = spec.tools()
        assert (add["type"], add["function"]["name"], add["function"]["description"]) == (
            "function", "add", "Adds a number to the counter.")
        assert add["function"]["parameters"]["properties"]["n"]["type"] == "integer"
        session = spec.open(EnvSection()).open("counting/train/00000007")
        session.reset()
        calls = [written_call(ToolCall("add", {"n": 5})), "fly", written_call(ToolCall("fly")),
                 written_call(ToolCall("add", {"n": "x"})), written_call(ToolCall("add", {"n": -2}))]
        heard = [session.step(call).observation for call in calls]
        assert [heard[0], heard[1], heard[4]] == ["12", "Call a tool.", "10"]
        assert all(one.startswith("Error: ") for one in (heard[2], heard[3]))
