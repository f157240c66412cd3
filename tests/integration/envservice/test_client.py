"""The client with real servers in their own processes, which are killed and restarted."""

import asyncio
import dataclasses
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from ports import likely_port
from toy_environment import ToyEnvironment, solution

from envservice.client.client import EnvClient, Result
from envservice.client.request_batching import Unreachable
from services.errors import EnvFault, ReplayDiverged

Start = Callable[..., Any]


def expected(task: str) -> list[dict[str, Any]]:
    session = ToyEnvironment().open(task)
    return [dataclasses.asdict(o) for o in [session.reset(), *(session.step(a) for a in solution(task))]]


def plain(results: list[Result]) -> list[dict[str, Any]]:
    rows = [dataclasses.asdict(result) for result in results]
    return [{key: value for key, value in row.items() if key != "digest"} for row in rows]


async def play(
    client: EnvClient, name: str, task: str, at: Callable[[int], Any] = lambda step: None,
) -> tuple[Any, int]:
    """Plays one game. Returns its transcript and its replays. `at` is called before each step, and awaited if
    needed."""
    episode = client.episode(name, task)
    results = [await episode.reset()]
    for index, action in enumerate(solution(task)):
        if (wait := at(index)) is not None:
            await wait
        results.append(await episode.step(action))
    await episode.close()
    return plain(results), episode.replays


async def test_many_games_at_once_go_in_few_requests(start: Start):
    server = start()
    tasks = [f"toy/train/{n:02d}" for n in range(20)]
    all_have_begun = asyncio.Barrier(80)  # each reset goes alone

    async def at(step: int) -> None:
        if step == 0:
            await all_have_begun.wait()

    async with EnvClient([server.url]) as client:
        games = await asyncio.gather(*(play(client, f"{task}.{i}", task, at) for task in tasks for i in range(4)))
        assert [game for game, _ in games] == [expected(task) for task in tasks for _ in range(4)]
        assert sum(replays for _, replays in games) == 0
        async with httpx.AsyncClient(timeout=60) as http:
            text = (await http.get(f"{server.url}/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    steps = sum(len(game) - 1 for game, _ in games)
    requests = float(lines['gagpo_env_request_seconds_count{route="/v1/episodes:step"}'])
    assert float(lines["gagpo_env_steps_total"]) == steps
    assert float(lines["gagpo_env_sessions"]) == 0
    assert requests < steps / 8


async def test_a_server_killed_and_restarted_in_mid_episode_is_invisible_save_one_replay(start: Start):
    server = start()
    task = "toy/train/00"
    loop = asyncio.get_running_loop()
    restarted: list[Any] = []

    def at(step: int) -> None:
        if step == 2:
            server.kill()
            restarted.append(loop.run_in_executor(None, lambda: start(port=server.port)))

    async with EnvClient([server.url], timeout_s=30, outage_s=240) as client:
        game, replays = await play(client, "e", task, at)
    await asyncio.gather(*restarted)
    assert game == expected(task)
    assert replays == 1


async def test_of_two_servers_one_dies_and_every_game_goes_on(start: Start):
    servers = [start(), start()]
    tasks = [f"toy/test/{n:02d}" for n in range(20)]
    async with EnvClient([server.url for server in servers], timeout_s=30) as client:
        lost = [client.ranking(task)[0].url == servers[0].url for task in tasks]
        assert 0 < sum(lost) < len(tasks)

        all_have_begun = asyncio.Barrier(len(tasks))

        async def at(step: int) -> None:
            if step == 1:
                await all_have_begun.wait()
                servers[0].kill()

        games = await asyncio.gather(*(play(client, task, task, at) for task in tasks))
    assert [game for game, _ in games] == [expected(task) for task in tasks]
    assert [replays for _, replays in games] == [int(was) for was in lost]


async def test_the_list_of_servers_changes_and_every_game_goes_on(start: Start):
    """Games whose server is removed are rebuilt on the remaining servers. The other games stay where they are."""
    servers = [start() for _ in range(3)]
    tasks = [f"toy/test/{n:02d}" for n in range(20)]
    stay = [server.url for server in servers[1:]]
    async with EnvClient([server.url for server in servers[:2]], timeout_s=30) as client:
        moved = [client.ranking(task)[0].url == servers[0].url for task in tasks]
        assert 0 < sum(moved) < len(tasks)

        all_have_begun = asyncio.Barrier(len(tasks))

        async def at(step: int) -> None:
            if step == 1:
                await all_have_begun.wait()
                client.use(stay)
            if step == 2:
                servers[0].kill()

        games = await asyncio.gather(*(play(client, task, task, at) for task in tasks))
        assert {client.ranking(task)[0].url for task in tasks} == set(stay)
    assert [game for game, _ in games] == [expected(task) for task in tasks]
    assert [replays for _, replays in games] == [int(was) for was in moved]


async def test_a_server_that_hangs_is_left_for_another(start: Start):
    servers = [start(), start()]
    async with EnvClient([server.url for server in servers], timeout_s=30, outage_s=240) as client:
        first = client.ranking("e")[0].url
        hung = next(server for server in servers if server.url == first)

        def at(step: int) -> None:
            if step == 1:
                hung.process.send_signal(signal.SIGSTOP)

        game, replays = await play(client, "e", "toy/train/01", at)
    assert game == expected("toy/train/01")
    assert replays == 1


async def test_another_engine_after_the_restart_is_a_divergence_never_a_result(start: Start):
    server = start()
    async with EnvClient([server.url], timeout_s=30) as client:
        episode = client.episode("e", "toy/train/00")
        await episode.reset()
        await episode.step("go on")
        server.kill()
        start("--drift", " It is cold.", port=server.port)
        with pytest.raises(ReplayDiverged, match="toy/train/00 at step 1"):
            await episode.step("go on")


async def test_faults_are_typed_and_spoil_no_other_episode(start: Start):
    server = start()
    async with EnvClient([server.url]) as client:
        names = ["toy/train/00", "toy/train/broken", "toy/train/99"]
        good, broken, unknown = await asyncio.gather(
            *(client.episode(name, name).reset() for name in names), return_exceptions=True)
        assert isinstance(good, Result)
        assert isinstance(broken, EnvFault)
        assert "env_fault" in str(broken)
        assert isinstance(unknown, EnvFault)
        assert "unknown_task" in str(unknown)
        episode = client.episode("c", "toy/train/00")
        await episode.reset()
        with pytest.raises(EnvFault, match="engine broke"):
            await episode.step("crash")
        await episode.step("go on")
        assert episode.replays == 1


async def test_all_servers_may_be_away_for_longer_than_a_call_may_take(start: Start):
    """Every game waits and continues when one of the two servers returns. The client knows that all are down."""
    servers = [start(), start()]
    tasks = [f"toy/test/{n:02d}" for n in range(6)]
    urls = [server.url for server in servers]
    async with EnvClient(urls, timeout_s=6, outage_s=240) as client:
        def at(step: int) -> None:
            if step == 1:
                for server in servers:
                    server.kill()

        games = [asyncio.create_task(play(client, task, task, at)) for task in tasks]
        while not client.away:  # noqa: ASYNC110 - it stays so until a server is back
            await asyncio.sleep(0.01)
        await asyncio.sleep(7)  # longer than a call may take
        assert client.away
        assert not any(game.done() for game in games)
        await asyncio.to_thread(lambda: start(port=servers[1].port))
        played = [await game for game in games]
        assert not client.away
    assert [game for game, _ in played] == [expected(task) for task in tasks]


async def test_a_request_that_no_server_survives_is_given_up(start: Start):
    """The servers answer other clients in between, so this is not an outage."""
    server = start()
    async with EnvClient([server.url], attempts=3, outage_s=60, timeout_s=30) as client:
        async def crashes(_: object) -> None:
            await client.info()
            raise Unreachable("it took the server down")

        with pytest.raises(EnvFault, match="3 requests failed; last: it took the server down"):
            await client.call(lambda: client.ranking("e"), crashes)


async def test_no_server_is_a_fault_within_the_deadline():
    async with EnvClient([f"http://127.0.0.1:{likely_port()}"], timeout_s=0.5) as client:
        since = time.monotonic()
        with pytest.raises(EnvFault, match=r"no answer within .* \(env\.call_seconds\)"):
            await client.episode("e", "toy/train/00").reset()
        with pytest.raises(EnvFault, match=r"no answer within .* \(env\.call_seconds\)"):
            await client.info()
        assert time.monotonic() - since < 60


async def test_the_client_reads_the_servers_info_and_task_lists(start: Start):
    async with EnvClient([start().url]) as client:
        info = await client.info()
        assert (info.name, info.engine, info.splits["train"].tasks) == ("toy", "corridor", 20)
        assert (await client.tasks("test")).tasks == ToyEnvironment().tasks("test")
        with pytest.raises(EnvFault, match="404"):
            await client.tasks("none")
