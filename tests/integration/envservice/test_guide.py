"""The game of `gagpo new-env`, the tutorial's game and the guide's program, run by the real commands over HTTP."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from envservice.client.client import EnvClient

DOCS = Path(__file__).parents[3] / "docs"
FILES = {name: text for page in ("tutorial.md", "tasks/own-environment.md") for name, text in re.findall(
    r"`(nim\.py|play\.py)`:\n\n```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder with a new environment and the files of the pages."""
    root = tmp_path_factory.mktemp("guide")
    subprocess.run([sys.executable, "-m", "deploy.cli", "new-env", "safe"], cwd=root, env=environ(root), timeout=60,
                   check=True)
    for name, text in FILES.items():
        (root / name).write_text(text)
    return root


def environ(folder: Path) -> dict[str, str]:
    """Provides the variables of a new user's shell: our commands on PATH, no game data, no cluster."""
    kept = {name: value for name, value in os.environ.items() if name not in ("ALFWORLD_DATA", "RAY_ADDRESS")}
    here = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PATH": f"{folder / 'bin'}:{kept['PATH']}", "PYTHONPATH": ":".join(here)}


@pytest.fixture(scope="module")
def serve(folder: Path):
    """Serves an environment of the page by `gagpo serve-env`, and ends it."""
    servers: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        server = subprocess.Popen(
            [sys.executable, "-m", "deploy.cli", "serve-env", "--config", "safe/config.yaml", "--port", "0", *options],
            cwd=folder, env=environ(folder), stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout is not None
        return server.stdout.readline().split(" on ")[1].strip()

    yield start
    for server in servers:
        server.terminate()
        server.wait(timeout=60)


def test_the_safe_is_played_over_http_by_the_guides_program(folder: Path, serve):
    url = serve()
    done = subprocess.run([sys.executable, "play.py", url], cwd=folder, env=environ(folder), capture_output=True,
                          text=True, timeout=60, check=True)
    assert done.stdout.endswith(": The safe opens.\n")


@pytest.mark.parametrize(("options", "name"), [((), "safe"), (("env.name=nim:SPEC",), "nim")])
async def test_a_session_is_rebuilt_by_another_server(serve, options: tuple[str, ...], name: str):
    """Every step is sent to a server that has not seen the episode."""
    one, other = serve(*options), serve(*options)
    async with asyncio.timeout(60), EnvClient([one]) as first, EnvClient([other]) as second:
        task = (await first.tasks("valid")).tasks[2]
        assert task.startswith(f"{name}/valid/")
        here, there = first.episode("here", task), second.episode("there", task)
        assert (await here.reset()).digest == (await there.reset()).digest
        now = await here.step("dance")
        for _ in range(3):
            action = now.admissible_actions[0]
            now = await here.step(action)
        assert not now.done
        for action in ("dance", *(["try 1"] * 3 if name == "safe" else ["1"] * 3)):
            same = await there.step(action)
        assert same == now


def test_a_gymnasium_game_takes_fewer_than_forty_lines():
    assert len(FILES["nim.py"].splitlines()) < 40
