"""Servers of MCP as environments, ours and published ones, and our environments as tools of MCP."""

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import likely_port
from third_party import PYTHON, needs_third_party
from waiting import wait_until

from envservice.adapters.mcp_client import McpEpisode, McpGame, mcp_spec
from envservice.adapters.mcp_server import McpSession
from envservice.guess.spec import SPEC
from envservice.registry import open_environment
from envservice.text.tool_calls import ToolCall, written_call
from services.config.env import EnvSection
from services.errors import EnvFault, Unavailable, UserError

pytest.importorskip("mcp", reason="the package mcp is not installed")
PROGRAMS = Path(__file__).parent / "mcp_programs"
ROOT = Path(__file__).parents[3]
DOORS = [sys.executable, str(PROGRAMS / "doors.py")]


def call(name: str, /, **arguments: object) -> str:
    return written_call(ToolCall(name, dict(arguments)))


def never(episode: McpEpisode) -> None:
    """No reward."""


def begin(episode: McpEpisode) -> str:
    (episode.folder / "note.txt").write_text(f"note {episode.number}")
    return f"Task {episode.number}."


def graded(episode: McpEpisode) -> float | None:
    """The server's own grade once the model answers."""
    return episode.call("grade").data["grade"] if episode.answer else None


@pytest.fixture
def play():
    """Opens sessions of a spec, and closes them."""
    games = []

    def opened(server=DOORS, score=never) -> McpGame:
        games.append(McpGame(server, begin, score, ["grade"], 60.0))
        return games[-1]

    yield opened
    for game in games:
        game.close()


def test_an_episode_is_a_fresh_session_in_a_folder_of_its_own(play):
    one, other = play(), play()
    assert one.reset(seed=1) == ("Task 1.", {})
    assert one.step(call("open_door", number=7)) == ("1 open.", 0.0, False, False, {})
    other.reset(seed=2)
    assert other.step(call("open_door", number=7))[0] == "1 open."
    assert [game.step(call("read", name="note.txt"))[0] for game in (one, other)] == ["note 1", "note 2"]
    folder = one._episode.folder
    one.reset(seed=1)
    assert one.step(call("open_door", number=7))[0] == "1 open."
    assert not folder.exists()


def test_the_users_function_gives_the_reward_by_a_tool_that_the_model_does_not_see(play):
    """Doors 3 and 4 are worth 7."""
    game = play(score=graded)
    game.reset(seed=0)
    assert "grade" not in [tool["function"]["name"] for tool in game.tools()]
    assert game.step(call("grade")) == (
        "Error: there is no tool grade. The tools are open_door, read, draw, wait, leave.", 0.0, False, False, {})
    for number in (3, 4):
        assert game.step(call("open_door", number=number))[1:3] == (0.0, False)
    assert game.step("done") == ("", 7.0, True, False, {})
    assert [made.name for made in game._episode.calls] == ["grade", "open_door", "open_door"]


def test_a_mistake_of_the_model_is_an_observation_and_the_episode_goes_on(play):
    game = play()
    game.reset(seed=0)
    assert game.step("hello")[0] == "Call a tool."
    assert "number" in game.step(call("open_door", number="x"))[0]
    assert game.step(call("read", name="missing.txt"))[0].startswith("Error executing tool read")
    assert [made.failed for made in game._episode.calls] == [True, True]
    assert game.step(call("open_door", number=1))[0] == "1 open."


def test_a_fault_of_the_server_is_an_error_and_no_reward_of_zero(play):
    """A server that has ended fails the call after it, too."""
    game = play(score=lambda episode: 0.0)
    game.reset(seed=0)
    game._session._seconds = 1.0  # for the calls; a busy machine may take longer to start a server
    for tool, message in (("draw", "answered draw with a part of type image, and the policy reads text alone"),
                          ("wait", "failed in wait: no answer in time"),
                          ("leave", r"doors\.py failed in leave: "), ("draw", "failed in draw: ")):
        with pytest.raises(EnvFault, match=message):
            game.step(call(tool))


def test_a_server_ends_once_its_session_is_dropped(tmp_path: Path):
    program = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); " \
        f"import runpy; runpy.run_path({DOORS[1]!r})"
    spec = mcp_spec([sys.executable, "-c", program], name="doors", begin=begin, score=never)
    session = spec.open(EnvSection()).open("doors/train/00000000")
    session.reset()
    pid = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    del session
    gc.collect()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_url_gives_each_episode_a_session(play):
    port = likely_port()
    with subprocess.Popen([*DOORS, str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            game, end = play(f"http://127.0.0.1:{port}/mcp", graded), time.monotonic() + 60
            while True:
                try:
                    game.reset(seed=0)
                    break
                except Unavailable:
                    assert time.monotonic() < end
                    time.sleep(0.2)
            assert game.step(call("open_door", number=5))[0] == "1 open."
            assert game.step("done")[1:3] == (5.0, True)
            game.reset(seed=1)
        finally:
            server.terminate()


@pytest.mark.parametrize(("server", "message"), [
    (["no-such-server"], "the MCP server of doors cannot be played .*no-such-server.*; correct `begin`, or install"),
    ([sys.executable, "-c", "raise SystemExit(3)"], "does not start a session"),
    ("http://127.0.0.1:9/mcp", "http://127.0.0.1:9/mcp does not start a session: ConnectError"),
])
def test_a_server_that_cannot_be_played_is_one_line_before_anything_starts(server, message: str):
    spec = mcp_spec(server, name="doors", begin=begin, score=never)
    with pytest.raises(UserError, match=message) as refused:
        spec.reachable(EnvSection())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("server", ["mcp-server-time", [], ""])
def test_a_server_that_is_neither_command_nor_url_is_refused(server):
    with pytest.raises(UserError, match=r"the MCP server of doors is .*; give a URL, or a list such as"):
        mcp_spec(server, name="doors", begin=begin, score=never)


def test_our_own_server_is_an_environment_with_the_rewards_of_its_games(play):
    """Whoever halves what is left wins the guessing game in three tries."""
    own = open_environment(EnvSection(name="guess"))
    task = own.tasks("train")[4]

    def start(episode: McpEpisode) -> str:
        return episode.call("reset", task=task).text

    def won(episode: McpEpisode) -> float | None:
        data = episode.calls[-1].data if episode.calls else None
        return data["reward"] if data and data["done"] else None

    serve = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "deploy.cli", "serve-env", "--env", "guess", "--mcp"]
    spec = mcp_spec(serve, name="guessing", begin=start, score=won, hidden=["reset"])
    spec.reachable(EnvSection())
    assert [tool["function"]["name"] for tool in spec.tools()] == ["step"]
    far, near = spec.open(EnvSection()).open("guessing/train/00000000"), own.open(task)
    assert near.reset().observation in far.reset().observation
    low, high, now = 1, 7, None
    while now is None or not now.done:
        number = (low + high) // 2
        now, same = far.step(call("step", action=str(number))), near.step(str(number))
        low, high = (number + 1, high) if "too low" in now.observation else (low, number - 1)
        assert (now.reward, now.done, now.won) == (same.reward, same.done, same.won)
    assert now.won


@pytest.mark.long
@needs_third_party
def test_the_published_server_for_times_is_an_environment():
    """Noon in Tokyo is 3:00 in UTC all year."""
    def answered(episode: McpEpisode) -> float | None:
        return float("3:00" in episode.answer) if episode.answer else None

    spec = mcp_spec([str(PYTHON), "-m", "mcp_server_time"], name="times", score=answered,
                    begin=lambda _: "When it is noon in Tokyo, what time is it in UTC?")
    session = spec.open(EnvSection()).open("times/train/00000000")
    session.reset()
    assert {tool["function"]["name"] for tool in spec.tools()} == {"get_current_time", "convert_time"}
    converted = call("convert_time", source_timezone="Asia/Tokyo", time="12:00", target_timezone="UTC")
    assert "T03:00:00+00:00" in session.step(converted).observation
    assert "Mars" in session.step(call("get_current_time", timezone="Mars/Base")).observation
    now = session.step("It is 3:00.")
    assert (now.reward, now.done, now.won) == (1.0, True, True)


@pytest.mark.long
@needs_third_party
def test_the_published_server_for_git_is_an_environment():
    """Each episode has a repository of its own, and the reward is what git itself says of it."""
    def git(folder: Path, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True,
                              env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}).stdout

    def start(episode: McpEpisode) -> str:
        git(episode.folder, "init", "--quiet")
        for name in ("user.name", "user.email"):
            git(episode.folder, "config", name, "someone@example.org")
        (episode.folder / "a.txt").write_text("a")
        return "Commit a.txt."

    def committed(episode: McpEpisode) -> float | None:
        return 1.0 if "a.txt" in git(episode.folder, "log", "--all", "--name-only") else None

    spec = mcp_spec([str(PYTHON), "-m", "mcp_server_git", "--repository", "."], name="commits", begin=start,
                    score=committed)
    for number in range(2):
        session = spec.open(EnvSection()).open(f"commits/train/{number:08d}")
        session.reset()
        assert "a.txt" in session.step(call("git_status", repo_path=".")).observation
        assert not session.step(call("git_add", repo_path=".", files=["a.txt"])).done
        now = session.step(call("git_commit", repo_path=".", message="a"))
        assert (now.reward, now.done) == (1.0, True)
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
