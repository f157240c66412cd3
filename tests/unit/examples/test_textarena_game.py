"""The example of a game of TextArena, served by a Python that has the real package, and played to its goal."""

import os
import subprocess
from collections import deque
from pathlib import Path

import pytest
from third_party import PYTHON, needs_third_party

from envservice.client.client import EnvClient

pytestmark = [pytest.mark.long, needs_third_party]
ROOT = Path(__file__).parents[3]
SERVE = """
from envservice.adapters.gymnasium import plays_twice
from envservice.server.app import Settings
from envservice.server.process import serve
from services.config.env import EnvSection
from textarena_game import SPEC

made = SPEC.open(EnvSection())
for task in made.tasks("train")[:20]:
    plays_twice(made, task)
serve(made, host="127.0.0.1", port=0, settings=Settings())
"""
MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


@pytest.fixture(scope="module")
def url():
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    with subprocess.Popen([PYTHON, "-c", SERVE], stdout=subprocess.PIPE, text=True,
                          env=os.environ | {"PYTHONPATH": path}) as server:
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def way(board: str) -> list[str]:
    """Returns the shortest way from P to G on the board in a text."""
    rows = [line[1:-1].split("|") for line in board.splitlines() if line.startswith("|")]
    cells = {(y, x): cell.strip() for y, row in enumerate(rows) for x, cell in enumerate(row)}
    ways = deque([(next(place for place, cell in cells.items() if cell == "P"), [])])
    seen = set()
    while ways:
        (y, x), moves = ways.popleft()
        if cells[y, x] == "G":
            return moves
        for move, (down, right) in MOVES.items():
            place = y + down, x + right
            if cells.get(place, "H") != "H" and place not in seen:
                seen.add(place)
                ways.append((place, [*moves, move]))
    raise AssertionError(board)


async def test_the_lake_is_crossed_twice_in_the_same_way(url):
    digests = []
    async with EnvClient([url], timeout_s=120) as client:
        assert (await client.info()).name == "frozenlake"
        for attempt in ("a", "b"):
            episode = client.episode(attempt, "frozenlake/train/00000003")
            now = await episode.reset()
            for move in way(now.observation):
                assert not now.done
                now = await episode.step(move)
            assert (now.done, now.won, now.reward) == (True, True, 1.0)
            digests.append(now.digest)
    assert digests[0] == digests[1]


async def test_a_word_that_is_no_move_is_answered_and_a_second_one_ends_the_game(url):
    async with EnvClient([url], timeout_s=120) as client:
        episode = client.episode("c", "frozenlake/valid/00001000")
        await episode.reset()
        first, second = await episode.step("fly"), await episode.step("fly again")
    assert "invalid move" in first.observation
    assert (first.done, second.done, second.won) == (False, True, False)
