"""An evaluation of a prompting baseline that is ended early, as its command tells it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("number", "status", "said"), [
    (signal.SIGTERM, 143, ["to go on: the same command"]),
    (signal.SIGINT, 130, ["to go on: the same command", "error: interrupted"])])
def test_an_evaluation_that_a_signal_ends_says_how_to_go_on(
        tmp_path: Path, number: signal.Signals, status: int, said: list[str]):
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        command = [sys.executable, "-m", "deploy.cli", "eval", "--policy", "react", "--model", "m", "--endpoint",
                   f"http://127.0.0.1:{endpoint.getsockname()[1]}/v1", "--out", str(tmp_path / "e.jsonl"),
                   "env.name=toy_environment:SPEC", "eval.panel=1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as process:
            endpoint.settimeout(200)
            asked, _ = endpoint.accept()
            process.send_signal(number)
            errors = process.communicate(timeout=100)[1]
            asked.close()
    assert (process.returncode, errors.splitlines()[1:]) == (status, said)
