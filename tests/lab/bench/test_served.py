"""The servers that benchmarks start, and the line of `gagpo serve-env` from which they read what was started."""

import subprocess
import sys

import pytest

from lab.bench.served import served


@pytest.fixture(autouse=True)
def generated_games(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)  # they are quick to list


@pytest.mark.parametrize("sessions", [1, 1500])
def test_a_bench_reads_how_many_sessions_its_server_can_hold(sessions: int):
    with served(["--env", "alfworld", f"env.max_sessions={sessions}"]) as server:
        assert server.sessions == sessions
        assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(("sessions", "said"), [(1, "at most 1 session, on"), (1500, "at most 1,500 sessions, on")])
def test_a_server_says_how_many_sessions_it_can_hold_in_plain_english(sessions: int, said: str):
    command = [sys.executable, "-m", "deploy.cli", "serve-env", "--env", "alfworld", "--port", "0",
               f"env.max_sessions={sessions}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline()
        finally:
            process.terminate()
    assert said in line
