"""docs/environments.md, "Adding an environment": its blocks as they stand, run by the real commands over real HTTP."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from envservice.client.client import EnvClient

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
GUIDE = PAGE.read_text().partition("## Adding an environment\n")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"`([\w/]+\.\w+)`[^`]*:\n\n```(?:python|yaml)\n(.*?)```", GUIDE, re.DOTALL))
CONSOLE = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder with the files of the page."""
    root = tmp_path_factory.mktemp("guide")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
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
            [sys.executable, "-m", "deploy.cli", "serve-env", "--config", "vault.yaml", "--port", "0", *options],
            cwd=folder, env=environ(folder), stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout is not None
        return server.stdout.readline().split(" on ")[1].strip()

    yield start
    for server in servers:
        server.terminate()
        server.wait(timeout=60)


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Returns the commands of a console block, each with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output.splitlines()


def test_every_block_of_the_guide_is_run_here():
    assert set(FILES) == {"vault/game.py", "vault/prompt.py", "vault/spec.py", "vault.yaml", "play.py", "nim.py"}
    assert GUIDE.count("\n```") == 2 * (len(FILES) + len(CONSOLE))


def test_the_commands_print_what_the_page_says(folder: Path):
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "gagpo").write_text(f'#!/bin/sh\nexec {sys.executable} -m deploy.cli "$@"\n')
    (folder / "bin" / "gagpo").chmod(0o755)
    shown = [pair for block in CONSOLE for pair in commands(block)]
    assert len(shown) >= 3
    for command, expected in shown:
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=environ(folder), capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        pattern = "".join(r"(?:.*\n)*" if line == "[...]" else re.escape(line) + r" *\n" for line in expected)
        assert re.fullmatch(pattern, done.stdout), f"{command} printed\n{done.stdout}"


def test_the_vault_is_played_over_http_by_the_pages_program(folder: Path, serve):
    url = serve()
    done = subprocess.run([sys.executable, "play.py", url], cwd=folder, env=environ(folder), capture_output=True,
                          text=True, timeout=60, check=True)
    assert done.stdout.endswith(": The safe opens.\n")


@pytest.mark.parametrize(("options", "name"), [((), "vault"), (("env.name=nim:SPEC",), "nim")])
async def test_a_session_is_rebuilt_by_another_server(serve, options: tuple[str, ...], name: str):
    """Every step is sent to a server that has not seen the episode."""
    one, other = serve(*options), serve(*options)
    async with asyncio.timeout(60), EnvClient([one]) as first, EnvClient([other]) as second:
        task = (await first.tasks("valid")).tasks[0]
        assert task.startswith(f"{name}/valid/")
        here, there = first.episode("here", task), second.episode("there", task)
        assert (await here.reset()).digest == (await there.reset()).digest
        now = await here.step("dance")
        for _ in range(3):
            action = now.admissible_actions[0]
            now = await here.step(action)
        assert not now.done
        for action in ("dance", *(["try 1"] * 3 if name == "vault" else ["1"] * 3)):
            same = await there.step(action)
        assert same == now


def test_a_gymnasium_game_takes_fewer_than_forty_lines():
    assert len(FILES["nim.py"].splitlines()) < 40


def test_the_pages_config_is_one_file_over_a_shipped_one():
    assert yaml.safe_load(FILES["vault.yaml"])["env"]["name"] == "vault.spec:SPEC"
