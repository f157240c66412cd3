"""Search QA over real HTTP: environment servers in processes of their own, and a retrieval server that counts."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from ports import likely_port

from envservice.client.client import EnvClient
from envservice.search.app import create_retrieval_app
from envservice.search.facts import world
from envservice.search.retrieval import HttpRetriever, IndexRetriever
from services.errors import EnvFault
from services.http.server import bind

GAGPO = Path(sys.executable).with_name("gagpo")


class Retrieval:
    """A retrieval server in a thread. `failing` is the status of the next replies, taken from the front."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: list[int] = []
        app = create_retrieval_app(IndexRetriever(world().documents()))
        self._count(app)
        self._listener = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/retrieve"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def _count(self, app: FastAPI) -> None:
        @app.middleware("http")
        async def count(request: Request, go_on):  # pyright: ignore[reportUnusedFunction]
            if request.url.path == "/retrieve":
                body = await request.json()
                self.asked.append(body.get("query") if isinstance(body, dict) else body)
                if self.failing:
                    return Response("no", status_code=self.failing.pop(0))
            return await go_on(request)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=60)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture
def retrieval() -> Iterator[Retrieval]:
    server = Retrieval()
    yield server
    server.stop()


class EnvServer:
    """`gagpo serve-env` over the invented world."""

    def __init__(self, retriever: str, port: int | None = None) -> None:
        command = [
            str(GAGPO), "serve-env", "--config", "alfworld-tiny", "--port", str(port or likely_port()),
            "--exit-with-parent", str(os.getpid()), "env.name=search", "env.max_steps=4",
            f"env.search.url=[{retriever}]"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert " on http://" in ready, "the server ended before it was ready"
        self.url = ready.split(" on ")[1].strip()
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """Kills the server with SIGKILL, so that it drains nothing."""
        self.process.kill()
        self.process.wait(timeout=60)


async def test_a_killed_server_is_replaced_and_nothing_is_searched_for_twice(retrieval: Retrieval):
    person = next(person for person in world().people if person.born_in.name)
    first = EnvServer(retrieval.url)
    second: EnvServer | None = None
    try:
        async with EnvClient([first.url], timeout_s=40) as client:
            listed = await client.tasks("train")
            assert (await client.info()).replay == "transcript"
            episode = client.episode("e", listed.tasks[0])
            shadow = client.episode("shadow", listed.tasks[0])
            results = [await episode.reset(), await episode.step(f"<search>{person.name}</search>")]
            assert person.born_in.name in results[1].observation
            first.kill()
            second = EnvServer(retrieval.url, port=first.port)
            results.append(await episode.step(f"<search>{person.born_in.name}</search>"))
            assert episode.replays == 1
            assert retrieval.asked == [person.name, person.born_in.name]
            end = await episode.step("<answer>nobody knows</answer>")
            assert (end.done, end.won, episode.replays) == (True, False, 1)
            unbroken = [await shadow.reset(), await shadow.step(f"<search>{person.name}</search>"),
                        await shadow.step(f"<search>{person.born_in.name}</search>")]
            assert [result.digest for result in unbroken] == [result.digest for result in results]
    finally:
        for server in (first, second):
            if server is not None:
                server.kill()


async def test_a_retriever_that_fails_is_a_fault_and_the_episode_can_go_on(retrieval: Retrieval):
    server = EnvServer(retrieval.url)
    try:
        async with EnvClient([server.url], timeout_s=40) as client:
            episode = client.episode("e", (await client.tasks("valid")).tasks[0])
            await episode.reset()
            await episode.step("<search>one</search>")
            retrieval.failing = [404]
            with pytest.raises(EnvFault, match="answered 404"):
                await episode.step("<search>two</search>")
            after = await episode.step("<search>two</search>")
            assert (after.done, episode.replays) == (False, 1)
            assert retrieval.asked == ["one", "two", "two"]
    finally:
        server.kill()


@pytest.fixture
def short_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the searches of environment servers end after a tenth of their time."""
    (tmp_path / "sitecustomize.py").write_text(
        "from envservice.search.retrieval import HttpRetriever\n"
        "HttpRetriever.__init__.__kwdefaults__['deadline_s'] = 1.5\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("short_searches")
async def test_an_episode_waits_for_a_retriever_that_is_away(retrieval: Retrieval):
    """With every attempt lost after one search, an outage of some minutes ended the run."""
    server = EnvServer(retrieval.url)
    try:
        async with EnvClient([server.url], timeout_s=40, attempts=1, outage_s=600) as client:
            episode = client.episode("e", (await client.tasks("valid")).tasks[0])
            await episode.reset()
            retrieval.failing = [503] * 8  # one search asks four times at most
            found = await episode.step("<search>river</search>")
            assert ("river" in found.observation, retrieval.failing, episode.replays) == (True, [], 0)
    finally:
        server.kill()


def test_the_retriever_tries_again_goes_on_to_the_next_server_and_gives_up_in_time(retrieval: Retrieval):
    retrieval.failing = [503, 500]
    assert len(HttpRetriever([retrieval.url]).search("river", 2)) == 2
    assert retrieval.asked == ["river"] * 3
    gone = f"http://127.0.0.1:{likely_port()}/retrieve"
    assert len(HttpRetriever([gone, retrieval.url]).search("river", 1)) == 1
    since = time.monotonic()
    with pytest.raises(EnvFault, match=r"no search result within 0\.5 s; last: .*Connect(Error|Timeout)"):
        HttpRetriever([gone], deadline_s=0.5).search("river", 1)
    assert time.monotonic() - since < 60


def test_a_pause_that_ends_after_the_deadline_is_the_last(retrieval: Retrieval, monkeypatch: pytest.MonkeyPatch):
    """On a busy machine any pause may end late; httpx takes no timeout below zero."""
    late = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(late), sleep=lambda _: late.append(1000.0))
    monkeypatch.setattr("envservice.search.retrieval.time", clock)
    retrieval.failing = [503]
    with pytest.raises(EnvFault, match=r"no search result within 600 s; last: .* answered 503"):
        HttpRetriever([retrieval.url], deadline_s=600.0).search("river", 1)
    assert retrieval.asked == ["river"]


def test_the_server_takes_both_forms_of_a_request(retrieval: Retrieval):
    title = world().people[0].name
    with httpx.Client(trust_env=False, timeout=60) as http:
        one, many, bare = (http.post(retrieval.url, json=body).json()["result"] for body in (
            {"query": title, "topk": 2, "return_scores": True},
            {"queries": [title, "river"], "topk": 2, "return_scores": True}, {"query": title, "topk": None}))
        wrong = [http.post(retrieval.url, json=body).status_code for body in (
            {}, [], {"query": 3}, {"query": "x", "topk": 0}, {"query": "x", "topk": 10**9}, {"queries": ["x"] * 300})]
    assert [len(hits) for hits in one] == [2]
    assert [len(hits) for hits in many] == [2, 2]
    assert many[0] == one[0]
    assert one[0][0]["document"]["contents"].startswith(f'"{title}"\n')
    assert one[0][0]["score"] > one[0][1]["score"]
    assert len(bare[0]) == 3
    assert set(bare[0][0]) == {"id", "contents"}
    assert wrong == [422] * 6
