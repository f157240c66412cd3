"""An evaluation of a prompting baseline as its command tells it: its result, and that it was ended early."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from large_models import sparse_model

from deploy.cli import main
from deploy.commands.eval import show


@pytest.mark.parametrize(("number", "status", "said"), [
    (signal.SIGTERM, 143, ["to continue: the same command"]),
    (signal.SIGINT, 130, ["to continue: the same command", "error: interrupted"])])
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


def test_a_prompting_baseline_starts_no_sampler_for_a_gpu_that_is_not_there(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """vLLM's CPU build took the settings of a GPU and compiled for minutes, also with hardware=cpu."""
    model = str(sparse_model(tmp_path / "model", "1.5b"))
    command = ["eval", model, "--policy", "direct", "--config", "alfworld-1.5b", "--out", str(tmp_path / "e.jsonl")]
    assert main(command) == 2
    assert "the plan asks for 1 GPU, and there is none on this machine" in capsys.readouterr().err
    main([*command, "hardware=cpu"])
    told, *errors = capsys.readouterr().err.splitlines()
    assert told.startswith("hardware=cpu sets ")
    assert "rollout.gpus=0" in told
    assert "gpus" not in "".join(errors)


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
    out = capsys.readouterr().out
    assert "100.0% of the answers did not have the form that the prompt asks for\n" in out
    assert re.search(r"^played in \d+ s$", out, re.MULTILINE)
    assert out.endswith(f"kept in {tmp_path / 'e.jsonl'}\n")


def test_a_result_is_shown_with_its_bad_answers_its_seconds_and_its_speed(capsys: pytest.CaptureFixture[str]):
    """3,000 tokens in 40 seconds are 75 a second; the time of loading does not count."""
    show({"policy": "m", "success_rate": 0.0, "success_low": 0.0, "success_high": 0.1, "tasks": 8, "split": "heldout",
          "env": "alfworld-gen", "engine": "own", "temperature": 0.4, "episode_length": 30.0, "success_by_type": {},
          "task_score": None, "dropped": 0, "invalid_share": 0.989, "inadmissible_share": 0.0, "cut_share": 0.926,
          "tokens_sampled": 3000, "seconds": 40.0, "loading_seconds": 61.0,
          "score_by_rule": {"strict": 0.5}, "full_score_by_rule": {"strict": 0.25}})
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "  strict: score 0.5, full score 25.0%",
        "answers: invalid 98.9%  inadmissible 0.0%  cut 92.6%",
        "played in 40 s after 1 min of loading, 75 tokens of answers a second"]
