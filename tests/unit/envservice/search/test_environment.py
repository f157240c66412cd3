"""Questions, searches and answers: tasks, sessions, prompts, and searches of several games at once."""

import json
import random
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from envservice.base import Turn
from envservice.registry import find_spec, make_template
from envservice.search.environment import SearchEnvironment
from envservice.search.facts import world
from envservice.search.prompts import information, last_answer, matches, normalised, parse_action
from envservice.search.questions import SPLITS, Question, read_documents, read_questions
from envservice.search.retrieval import HttpRetriever
from envservice.server.app import Settings, create_app
from services.config.env import EnvSection, SearchSection
from services.config.tree import SftSection
from services.errors import EnvFault, Unavailable, UserError

QUESTION = Question(question="Where?", golden_answers=("the Hague", "Den Haag"), data_source="nq")


class Library:
    """A retriever that finds every query and records it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def search(self, query: str, topk: int) -> list[str]:
        self.asked.append((query, topk))
        if query == "down":
            raise EnvFault("the library is closed")
        return [f"about {query}"]


def environment(library: Library, turns: int = 4) -> SearchEnvironment:
    return SearchEnvironment("search", {"train": (QUESTION,), "valid": (), "heldout": ()}, library, turns=turns)


def test_an_episode_that_searches_and_answers():
    library = Library()
    session = environment(library).open("search/train/000000")
    first = session.reset()
    assert (first.observation, first.done, first.info) == ("Where?", False, {"data_source": "nq"})
    evidence = session.step("<search>seat of government</search>")
    assert evidence.observation == '<information>{"result": "Doc 1: about seat of government\\n"}</information>'
    assert (evidence.reward, evidence.done) == (0.0, False)
    end = session.step("<answer>The Hague!</answer>")
    assert (end.observation, end.reward, end.done, end.won) == ("", 1.0, True, True)
    assert library.asked == [("seat of government", 3)]


@pytest.mark.parametrize(("actions", "won"), [
    (["<answer>Paris</answer>"], False),
    (["", "nonsense", "<search></search>", "<search>x</search>"], False),
    (["", "", "", "<answer>Den Haag</answer>"], True),
    (["<search>x</search><answer>den haag</answer>"], True),
])
def test_the_end_is_an_answer_or_the_last_turn(actions: list[str], won: bool):
    library = Library()
    session = environment(library).open("search/train/000000")
    session.reset()
    *between, last = [session.step(action) for action in actions]
    assert not any(outcome.done or outcome.reward for outcome in between)
    assert (last.done, last.won, last.reward) == (True, won, float(won))
    assert library.asked == []


def test_a_recalled_session_goes_on_without_asking_again():
    library = Library()
    recorded, rebuilt = (environment(library, turns=3).open("search/train/000000") for _ in range(2))
    recorded.reset()
    rebuilt.reset()
    for action in ("<search>a</search>", "<search>b</search>"):
        rebuilt.recall(action, recorded.step(action))
    assert [query for query, _ in library.asked] == ["a", "b"]
    assert rebuilt.step("<answer>The Hague</answer>") == recorded.step("<answer>The Hague</answer>")


def test_a_fault_of_the_retriever_makes_no_outcome_and_uses_no_turn():
    session = environment(Library(), turns=2).open("search/train/000000")
    session.reset()
    with pytest.raises(EnvFault, match="closed"):
        session.step("<search>down</search>")
    assert not session.step("<search>up</search>").done


def test_tasks_are_rows_and_nothing_else():
    opened = environment(Library())
    assert opened.tasks("train") == ["search/train/000000"]
    assert opened.task_type("search/train/000000") == "nq"
    assert opened.digest("train") != opened.task_digest("search/train/000000")
    for wrong in ("search/train/0", "search/train/000001", "search/test/000000", "x/train/000000", "search/train/²"):
        with pytest.raises(KeyError):
            opened.open(wrong)
    with pytest.raises(UserError, match="no split"):
        opened.tasks("test")
    with pytest.raises(UserError, match="no question"):
        opened.tasks("valid")


def test_the_version_covers_the_questions_and_documents_of_the_user(tmp_path: Path):
    """Task ids are rows: with corrected answers, or with other documents, they are the same."""
    def version(name: str, *, answer: str = "1950", contents: str = "Ann was born in 1950.", url: str = "") -> str:
        folder = tmp_path / name
        folder.mkdir()
        for split in SPLITS:
            (folder / f"{split}.jsonl").write_text(f'{{"question": "{split}?", "golden_answers": "{answer}"}}\n')
        (folder / "documents.jsonl").write_text(f'{{"id": "1", "contents": "{contents}"}}\n')
        env = EnvSection(name="search", data=folder, search=SearchSection(url=(url,) if url else ()))
        return find_spec("search").open(env).version

    first = version("first")
    assert first.startswith("1-4-3+data-")
    assert version("copy") == first
    assert len({first, version("corrected", answer="1951"), version("other", contents="Ann was born in 1951.")}) == 3
    asked = version("asked", url="http://127.0.0.1:9/retrieve")
    assert version("asked-too", url="http://127.0.0.1:9/retrieve", contents="Not read.") == asked != first
    assert find_spec("search").open(EnvSection(name="search")).version == "1-4-3"


def test_splits_of_the_invented_world_share_no_question_and_nobody_asked_about():
    questions = world().questions()
    texts = {split: {row.question for row in questions[split]} for split in SPLITS}
    assert sum(map(len, texts.values())) == len(set().union(*texts.values())) == 240 * 4 + 60 * 3
    for person in world().people:
        assert sum(any(person.name in text for text in texts[split]) for split in SPLITS) == 1
    assert all(len(texts[split]) >= 50 for split in SPLITS)


def test_the_scripted_player_answers_every_question_of_the_invented_world():
    """Which also says that each can be answered from what a search finds."""
    env = EnvSection(name="search", max_steps=4)
    spec = find_spec("search")
    assert spec.teacher is not None
    opened = spec.open(env)
    for split in SPLITS:
        for task in opened.tasks(split):
            session = opened.open(task)
            now = session.reset()
            player = spec.teacher.player(now, random.Random(0), SftSection())
            while not now.done:
                now = session.step(player.act(now))
            assert now.won, task


def test_prompts_show_what_was_found():
    library = Library()
    session = environment(library).open("search/train/000000")
    first = session.reset()
    actions = ["<search>a</search>", "<search>b</search>"]
    outcomes = [first, *(session.step(action) for action in actions)]
    turns = [Turn(observation=outcomes[i].observation, action=actions[i], admissible=False) for i in range(2)]
    compact = make_template(EnvSection(name="search", prompt="compact", history=4))
    assert compact.render(first, [], first) == "Q: Where?\n"
    assert compact.render(first, turns, outcomes[2]) == "Q: Where?\nS: a\nDoc 1: about a\nS: b\nDoc 1: about b\n"
    full = make_template(EnvSection(name="search", prompt="full", history=1))
    assert full.render(first, [], first).count("already taken") == 0
    text = full.render(first, turns, outcomes[2])
    assert "You have already taken 2 step(s)" in text
    assert 'Step 2:<search>b</search> <information>{"result": "Doc 1: about b\\n"}</information>' in text
    assert "Step 1:" not in text
    assert make_template(EnvSection(name="search", history=0)).render(first, turns, outcomes[2]).count("Step") == 0


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_users_own_file_of_questions_is_read(tmp_path: Path):
    rows = [{"question": f"q{n}", "golden_answers": "x", "data_source": "nq"} for n in range(64)]
    write(tmp_path / "questions.jsonl", rows)
    questions = read_questions(tmp_path)
    asked = [row.question for split in SPLITS for row in questions[split]]
    assert sorted(asked) == sorted(row["question"] for row in rows)
    assert len(questions["train"]) > len(questions["heldout"]) > 0
    with pytest.raises(UserError, match=r"documents\.jsonl"):
        find_spec("search").open(EnvSection(name="search", data=tmp_path))
    write(tmp_path / "documents.jsonl", [{"id": n, "contents": f"text {n}"} for n in range(3)])
    opened = find_spec("search").open(EnvSection(name="search", data=tmp_path, search=SearchSection(topk=1)))
    session = opened.open("search/train/000000")
    session.reset()
    assert "Doc 1: text 2" in session.step("<search>2</search>").observation


@pytest.mark.parametrize(("line", "message"), [
    ('{"question": "q"}', "golden_answers"), ('{"question": "q", "golden_answers": []}', "no golden answer"),
    ('\n\n{"question": "q"}', "line 3 of"), ('{"question": "q", "golden_answers": ["x", " "]}', "line 1 of .* empty"),
    ('{"question": " ", "golden_answers": "x"}', "line 1 of .* empty"),
    ("[1]", "line 1 of"), ("{", "line 1 of"), ('{"question": 3, "golden_answers": "x"}', "line 1 of"),
])
def test_a_malformed_question_is_named(tmp_path: Path, line: str, message: str):
    (tmp_path / "questions.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        read_questions(tmp_path)


def test_files_that_overlap_or_are_missing_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"train\.jsonl"):
        read_questions(tmp_path)
    for split in SPLITS:
        write(tmp_path / f"{split}.jsonl", [{"question": "the same", "golden_answers": ["x"]}])
    with pytest.raises(UserError, match=r"in train\.jsonl and in valid\.jsonl"):
        read_questions(tmp_path)
    (tmp_path / "documents.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(UserError, match=r"line 1 of .* is not a document"):
        read_documents(tmp_path / "documents.jsonl")


def test_files_in_another_coding_are_told_in_one_line(tmp_path: Path):
    """Questions in Latin-1 were a traceback. A byte-order mark of UTF-8 is read over, as before in documents alone."""
    text = '{"question": "Où?", "golden_answers": "là"}\n'
    (tmp_path / "questions.jsonl").write_text(text, encoding="utf-8-sig")
    assert sum(map(len, read_questions(tmp_path).values())) == 1
    for coding, message in (("latin-1", r"line 1 of .* is not a question: .*utf-8"), ("utf-16", "UTF-16.*; save it")):
        (tmp_path / "questions.jsonl").write_text(text, encoding=coding)
        with pytest.raises(UserError, match=message):
            read_questions(tmp_path)


def test_questions_with_and_without_splits_in_one_folder_are_refused(tmp_path: Path):
    """The user's own splits were left out in silence."""
    write(tmp_path / "questions.jsonl", [{"question": "q", "golden_answers": "x"}])
    write(tmp_path / "train.jsonl", [{"question": "q", "golden_answers": "x"}])
    with pytest.raises(UserError, match=r"has questions\.jsonl and train\.jsonl; keep one"):
        read_questions(tmp_path)


@pytest.mark.parametrize("text", [
    '{"id": "a", "contents": null}', '{"id": null, "contents": "x"}', '{"id": "a", "contents": {"text": "x"}}',
    '{"id": "a", "contents": "\\ud800"}', ""])
def test_a_document_that_is_no_text_is_refused(tmp_path: Path, text: str):
    """null was the text None, and a file without any document found nothing for every search."""
    (tmp_path / "documents.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"line 1 of .* is not a document|has no document"):
        read_documents(tmp_path / "documents.jsonl")


def test_two_documents_with_one_id_are_refused(tmp_path):
    write(tmp_path / "documents.jsonl", [{"id": "a", "contents": "one"}, {"id": "a", "contents": "other"}])
    with pytest.raises(UserError, match=r"line 2 of .* has the id 'a' of an earlier line"):
        read_documents(tmp_path / "documents.jsonl")

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


@pytest.mark.parametrize(("text", "action", "valid"), [
    ("<think>x</think><search> who is it </search>", "<search>who is it</search>", True),
    ("<answer>\nParis\n</answer>", "<answer>Paris</answer>", True),
    ("no thought is asked for: <ANSWER>Paris</ANSWER>", "<answer>Paris</answer>", True),
    ("<search>one</search> and more", "<search>one</search>", True),
    ("<search>one</search><search>two</search>", "<search>one</search>", False),
    ("<search>one</search><answer>two</answer>", "<search>one</search>", False),
    ("<answer>two</answer><search>one</search>", "<search>one</search>", False),
    ("<answer>one</answer> then <answer>two</answer>", "<answer>one</answer>", False),
    ("<search>open <answer>two</answer>", "<answer>two</answer>", False),
    ("<search>never closed", "", False),
    ("Paris", "", False),
    ("", "", False),
])
def test_an_answer_becomes_an_action_and_its_validity(text: str, action: str, valid: bool):
    parsed = parse_action(text)
    assert (parsed.action, parsed.valid) == (action, valid)


def test_answers_are_compared_after_the_published_normalisation():
    assert normalised("The  Beatles' \"An\" A-Team!") == "beatles ateam"
    assert matches("the Eiffel Tower.", ["eiffel tower"])
    assert matches("1969", ["July 1969", "1969"])
    assert not matches("theatre", ["atre"]), "articles are words"
    assert not matches("", ["x"])


def test_the_last_answer_of_all_actions_counts():
    assert last_answer("<answer>a</answer><search>q</search><answer> b </answer>") == "b"
    assert last_answer("<search>q</search>") is None


def test_evidence_is_json_in_tags():
    expected = '<information>{"result": "Doc 1: \\"T\\"\\ntext\\nDoc 2: x\\n"}</information>'
    assert information(['"T"\ntext', "x"]) == expected
    assert information([]) == '<information>{"result": "No search results found."}</information>'
