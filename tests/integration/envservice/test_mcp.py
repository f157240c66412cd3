"""Our environments as tools of MCP, for the client of the package `mcp` in two versions that exclude each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from third_party import PYTHON, needs_third_party

from envservice.adapters.mcp_server import McpSession
from envservice.guess.spec import SPEC
from services.config.env import EnvSection

PROGRAMS = Path(__file__).parent / "mcp_programs"
ROOT = Path(__file__).parents[3]
SERVE = [sys.executable, "-m", "deploy.cli", "serve-env", "--env", "noisy_game:SPEC", "--mcp"]


def calling(*actions: str) -> list[object]:
    return [["step", {"action": action}] for action in actions]


@pytest.mark.long
@pytest.mark.parametrize("python", [pytest.param(PYTHON, marks=needs_third_party, id="mcp 1"),
                                    pytest.param(sys.executable, id="mcp 2")])
def test_a_client_plays_games_of_an_engine_that_prints_and_breaks(python):
    pytest.importorskip("mcp")
    calls = [["reset", {"task": "noisy/train/00000004"}], *calling("knock", "open", "knock"),
             ["reset", {"split": "train", "seed": 7}], *calling("break", "open"), ["reset", {"task": "no/such"}]]
    played = subprocess.run(
        [python, PROGRAMS / "play.py", json.dumps(calls), *SERVE], cwd=ROOT, capture_output=True, text=True,
        timeout=240, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(PROGRAMS)])})
    assert played.returncode == 0, played.stderr
    told = json.loads(played.stdout)
    assert told["tools"] == ["reset", "step"]
    assert [result["content"][0]["text"] for result in told["results"]] == [
        "Door 4.\n\nYour actions: open, knock", "Nobody.\n\nYour actions: open", "Light.\n\nThe game is over: won.",
        "the episode is over: reset", "Door 7.\n\nYour actions: open, knock",
        "the engine failed: RuntimeError: the door fell on the engine (in step, noisy_game.py:14)",
        "the episode is over: reset",
        "there is no task 'no/such'"]
    assert [bool(result["isError"]) for result in told["results"]] == [False] * 3 + [True, False, True, True, True]
    assert told["results"][2]["structuredContent"] == {
        "observation": {"text": "Light.", "admissible_actions": [], "won": True, "task": "noisy/train/00000004"},
        "reward": 1.0, "done": True, "metadata": {}}


@pytest.mark.parametrize(("line", "code"), [
    (b"x", -32700), (b"[1]", -32600), (b'{"id": 1, "method": "resources/list"}', -32601),
    (b'{"id": 1, "method": "tools/call", "params": [1]}', -32602),
    (b'{"id": 1, "method": "tools/call", "params": {"name": "fly"}}', -32602),
    (b'{"id": 1, "method": "tools/call", "params": {"name": "step", "arguments": "up"}}', -32602),
])
def test_a_wrong_message_is_answered_by_its_error(line, code):
    assert json.loads(McpSession(SPEC.open(EnvSection(name="guess"))).answer(line))["error"]["code"] == code


def test_a_client_of_an_unknown_version_gets_the_newest_that_we_speak_and_notifications_no_answer():
    session = McpSession(SPEC.open(EnvSection(name="guess")))

    def version(asked: str) -> str:
        message = {"id": 1, "method": "initialize", "params": {"protocolVersion": asked}}
        return json.loads(session.answer(json.dumps(message).encode()))["result"]["protocolVersion"]

    assert [version(asked) for asked in ("2025-03-26", "2031-01-01")] == ["2025-03-26", "2025-11-25"]
    assert session.answer(b'{"method": "notifications/initialized"}') is None
