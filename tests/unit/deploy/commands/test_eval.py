"""An evaluation of a prompting baseline as its command tells it: its result, and that it was ended early."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.cli import main


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
    imported, playing, *rest = errors.splitlines()
    assert imported.startswith("imports env.name=toy_environment:SPEC")
    assert playing.startswith("playing 1 game")
    assert (process.returncode, rest) == (status, said)


class Mumbles(BaseHTTPRequestHandler):
    """A server whose model never answers in any form."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"choices": [{"message": {"content": "Well."}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_answers_without_the_form_that_was_asked_for_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A success of 0% looked like that of a weak model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mumbles)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert main(["eval", "--policy", "react", "--model", "m", "--endpoint",
                     f"http://127.0.0.1:{server.server_port}/v1", "--out", str(tmp_path / "e.jsonl"),
                     "env.name=toy_environment:SPEC", "env.max_steps=3", "eval.panel=2"]) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert "100.0% of the answers did not have the form that the prompt asks for\n" in capsys.readouterr().out
