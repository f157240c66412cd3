"""How long a server holds a live session that nobody uses, over real HTTP."""

import asyncio
from pathlib import Path

import pytest

from envservice.client.client import EnvClient
from lab.bench.served import served
from services.errors import EnvFault

GAME = """
from envservice.adapters.gymnasium import text_spec

class Game:
    def reset(self, *, seed):
        return "a corridor", {}

    def step(self, action):
        return "a corridor", 0.0, False, False, {}

SPEC = text_spec(Game, name="world", replayable=False)
"""


async def test_a_live_session_that_nobody_uses_for_agent_seconds_is_lost_and_the_line_names_the_key(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "world.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    with served(["--env", "world:SPEC", "agent.seconds=0.5"]) as server:
        async with EnvClient([server.url]) as client:
            episode = client.episode("e", (await client.tasks("train")).tasks[0])
            await episode.reset()
            await asyncio.sleep(1)
            with pytest.raises(EnvFault, match=r"nobody uses for 0.5 s \(agent.seconds\)"):
                await episode.step("go")
