"""Commands of environments run where only the packages of a server are installed, as in the servers' images."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from ports import likely_port

CODE = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "ray", "redis", "torch", "transformers", "vllm"), None))
from deploy.cli import main
sys.exit(main({argv!r}))
"""
READY_S = 120.0


def started(*argv: str) -> subprocess.Popen[str]:
    hidden = ("ALFWORLD_DATA", "GAGPO_ENV_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.Popen([sys.executable, "-c", CODE.format(argv=list(argv))], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("options", [["env.alfworld.task_types=[pick]"], ["--config", "alfworld-tiny"]])
def test_tasks_are_listed(options: list[str]):
    with started("play", "--tasks", "train", *options) as process:
        out, err = process.communicate(timeout=READY_S)
    assert process.returncode == 0, err
    assert out.startswith("alfworld-gen/train/")


def test_a_server_answers_and_asks_for_the_token_of_its_config(tmp_path: Path):
    port, secret = likely_port(), tmp_path / "token"
    secret.write_text("not-a-secret\n")
    with started("serve-env", "--env", "alfworld", "--port", str(port), f"env.token_file={secret}") as process:
        try:
            deadline = time.monotonic() + READY_S
            while True:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                try:
                    assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=60).status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            info = f"http://127.0.0.1:{port}/v1/info"
            assert httpx.get(info, trust_env=False, timeout=60).status_code == 401
            headers = {"authorization": "Bearer not-a-secret"}
            assert httpx.get(info, headers=headers, trust_env=False, timeout=60).status_code == 200
        finally:
            process.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("options", [[], ["--openenv"]])
def test_a_signal_ends_a_server_without_an_error(options: list[str], number: int, status: int):
    """Ctrl-C made it say `error: interrupted`, as a command does that is ended before its end, and leave with 130. For
    SIGTERM the two protocols had different statuses."""
    with started("serve-env", "--env", "alfworld", "--port", "0", *options) as process:
        assert process.stdout.readline().startswith("serving ")
        process.send_signal(number)
        out, err = process.communicate(timeout=READY_S)
    assert (process.returncode, out) == (status, "")
    assert "error" not in err
