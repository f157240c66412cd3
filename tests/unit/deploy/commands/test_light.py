"""Commands of environments run where only the packages of a server are installed, as in the servers' images."""

import os
import subprocess
import sys
import time

import httpx
import pytest

from services.process.addresses import free_port

CODE = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "ray", "redis", "torch", "transformers", "vllm"), None))
from deploy.cli import main
sys.exit(main({argv!r}))
"""
READY_S = 120.0


def started(*argv: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
    return subprocess.Popen([sys.executable, "-c", CODE.format(argv=list(argv))], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment | {"GAGPO_ENV_TOKEN": "not-a-secret"})


@pytest.mark.parametrize("options", [["env.alfworld.task_types=[pick]"], ["--config", "alfworld-tiny"]])
def test_tasks_are_listed(options: list[str]):
    with started("tasks", "train", *options) as process:
        out, err = process.communicate(timeout=READY_S)
    assert process.returncode == 0, err
    assert out.startswith("alfworld-gen/train/")


def test_a_server_answers():
    port = free_port()
    with started("serve-env", "--env", "alfworld", "--port", str(port)) as process:
        try:
            deadline = time.monotonic() + READY_S
            while True:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                try:
                    assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
        finally:
            process.kill()
