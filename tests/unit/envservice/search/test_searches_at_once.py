"""The games of an environment server wait for their searches together, not one after the other."""

import threading
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from envservice.search.environment import SearchEnvironment
from envservice.search.questions import Question
from envservice.search.retrieval import HttpRetriever
from envservice.server.app import Settings, create_app
from services.errors import Unavailable

GAMES = 6
TASKS = [f"search/train/{row:06d}" for row in range(GAMES)]


class Meeting(HttpRetriever):
    """A retriever whose searches end when GAMES of them are under way."""

    def __init__(self) -> None:
        super().__init__(["http://127.0.0.1:1/retrieve"])
        self.barrier = threading.Barrier(GAMES)
        self.asked: list[str] = []

    def search(self, query: str, topk: int) -> list[str]:
        self.asked.append(query)
        self.barrier.wait(60)
        if query == "down":
            raise Unavailable("the library is closed")
        return [f"about {query}"]


QUESTIONS = {"train": tuple(Question(question=f"Where is {row}?", golden_answers=("here",), data_source="nq")
                            for row in range(GAMES)), "valid": (), "heldout": ()}


def client_of(environment: SearchEnvironment, *, threaded: bool) -> httpx.AsyncClient:
    app = create_app(environment, Settings(threaded=threaded))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://search", timeout=120)


async def post(http: httpx.AsyncClient, verb: str, elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return (await http.post(f"/v1/episodes:{verb}", json=elements)).json()


async def test_the_steps_of_one_request_search_at_once():
    """Each search waited for those before it: with 50 ms each and a hundred games, five seconds a turn."""
    retriever = Meeting()
    async with client_of(SearchEnvironment("search", QUESTIONS, retriever), threaded=True) as http:
        firsts = await post(http, "reset", [{"episode_id": task, "task": task} for task in TASKS])
        queries = [*(f"river {row}" for row in range(GAMES - 1)), "down"]
        steps = [{"episode_id": task, "task": task, "actions": [], "action": f"<search>{query}</search>",
                  "digest": first["digest"]} for task, query, first in zip(TASKS, queries, firsts, strict=True)]
        *results, away = await post(http, "step", steps)
        assert [f"about river {row}" in each["observation"] for row, each in enumerate(results)] == [True] * (GAMES - 1)
        assert (away["type"], away["message"]) == ("unavailable", "the library is closed")
        assert sorted(retriever.asked) == sorted(queries)
        again = await post(http, "step", steps[:-1])  # recorded results: nothing is searched for
        assert (again, len(retriever.asked)) == (results, GAMES)


async def test_a_step_that_was_foreseen_is_searched_for_once_and_another_one_anew():
    asked: list[str] = []

    class Library(HttpRetriever):
        def begin(self, query: str, topk: int) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(self.search(query, topk))
            return future

        def search(self, query: str, topk: int) -> list[str]:
            asked.append(query)
            return [f"about {query}"]

    session = SearchEnvironment("search", QUESTIONS, Library(["http://127.0.0.1:1"]), turns=3).open(TASKS[0])
    session.reset()
    session.foresee("<search>one</search>")
    assert "about one" in session.step("<search>one</search>").observation
    session.foresee("<search>two</search>")
    assert "about three" in session.step("<search>three</search>").observation
    session.foresee("<search>four</search>")  # the last turn ends, whatever it says
    session.foresee("<answer>here</answer>")
    assert session.step("<answer>here</answer>").won
    assert asked == ["one", "two", "three"]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_session_that_cannot_foresee_is_stepped_all_the_same(threaded: bool):
    class Careless(SearchEnvironment):
        def open(self, task: str) -> Any:
            session = super().open(task)
            session.foresee = lambda action: {}[action]
            return session

    class Found:
        def search(self, query: str, topk: int) -> list[str]:
            return [f"about {query}"]

    async with client_of(Careless("search", QUESTIONS, Found()), threaded=threaded) as http:
        (first,) = await post(http, "reset", [{"episode_id": "e", "task": TASKS[0]}])
        (result,) = await post(http, "step", [{"episode_id": "e", "task": TASKS[0], "actions": [],
                                              "action": "<search>x</search>", "digest": first["digest"]}])
    assert "about x" in result["observation"]
