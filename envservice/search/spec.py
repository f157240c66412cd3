"""The EnvironmentSpec of search QA."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

from envservice.base import Environment, Outcome, digest_of
from envservice.search.prompts import SearchCompactTemplate, SearchFullTemplate, result_of
from envservice.spec import EnvironmentSpec, Teacher
from services.config.tree import EnvSection, SftSection
from services.errors import EnvFault, UserError

if TYPE_CHECKING:
    from envservice.search.retrieval import Retriever


# The scripted player of the invented world. It looks up the name in the question, then the place in the result.
#
# It knows how documents and questions are worded, and otherwise only what it has read in this episode.

_BORN = r"{name} was an? .+?, born in (\S+) in \d+"
_RIVER = r"{name} is a town in .+? It lies on the river (\S+),"
# The question; a fact about the name in it; a fact about the place in it, if that place is not the answer.
_ROUTES: tuple[tuple[str, str, str | None], ...] = (
    (r"In which town was (.+) born\?", _BORN, None),
    (r"What was the trade of (.+)\?", r"{name} was an? (.+?), born in", None),
    (r"On which river lies the birthplace of (.+)\?", _BORN, _RIVER),
    (r"In which region was (.+) born\?", _BORN, r"{name} is a town in (\S+)\."),
    (r"On which river does (.+) lie\?", _RIVER, None),
    (r"In which year was (.+) founded\?", r"{name} is a town in .+? was founded in (\d+)", None),
    (r"What is (.+) known for\?", r"{name} is a town in .+? is known for its (.+?)\.", None),
)


class SearchDemonstrator:
    """Plays one question. It answers `unknown` if it does not know the form of the question, or if the documents do not
    help."""

    def __init__(self, first: Outcome, _rng: random.Random, _sft: SftSection) -> None:
        self._name, self._steps = _route(first.observation)
        self._read = ""
        self._asked: list[str] = []

    def act(self, now: Outcome) -> str:
        self._read += result_of(now.observation)
        name = self._name
        for pattern in self._steps:
            match = re.search(pattern.replace("{name}", re.escape(name)), self._read)
            if match is None:
                return self._search(name)
            name = match[1]
        return f"<answer>{name}</answer>" if self._steps else "<answer>unknown</answer>"

    def _search(self, name: str) -> str:
        if self._asked.count(name) > 1:  # two searches, because noise may have replaced the first one
            return "<answer>unknown</answer>"
        self._asked.append(name)
        return f"<search>{name}</search>"


def _route(question: str) -> tuple[str, list[str]]:
    for asked, *steps in _ROUTES:
        if match := re.fullmatch(asked, question):
            return match[1], [step for step in steps if step is not None]
    return "", []


def disturb(action: str, _first: Outcome, _now: Outcome, rng: random.Random) -> str:
    """Returns a search for one word of `action`, to be taken in its place."""
    words = re.sub(r"<[^>]*>", " ", action).split()
    return f"<search>{rng.choice(words or ['river'])}</search>"


TEACHER = Teacher(player=SearchDemonstrator, disturb=disturb)


PROBE_S = 5.0
"""Longest wait for each retriever in the check before a run."""


def open_environment(env: EnvSection) -> Environment:
    """Opens the questions and documents of env.data, or the invented world. Evidence comes from env.search.url if set.

    Raises UserError for missing or malformed data.
    """
    from envservice.search.environment import SearchEnvironment
    from envservice.search.facts import world
    from envservice.search.questions import questions_digest, read_questions
    from envservice.search.retrieval import HttpRetriever, IndexRetriever

    turns, topk = env.search.turns, env.search.topk
    remote = HttpRetriever(env.search.url) if env.search.url else None
    if env.data is None:
        return SearchEnvironment("search-gen", world().questions(), remote or IndexRetriever(world().documents()),
                                 turns=turns, topk=topk)
    questions = read_questions(env.data)
    retriever, documents = (remote, "") if remote else _embedded(env.data)
    return SearchEnvironment("search", questions, retriever, turns=turns, topk=topk,
                             data=digest_of([questions_digest(questions), documents]))


def _embedded(data: Path) -> tuple[Retriever, str]:
    """Returns the index of the folder's documents, and the digest of their file."""
    from envservice.bm25.index import IN_MEMORY, cache_folder
    from envservice.search.questions import read_documents
    from envservice.search.retrieval import IndexRetriever

    file = data / "documents.jsonl"
    if not file.is_file():
        raise UserError(f"{data} has no documents.jsonl to search in", "add it, or set env.search.url to a retriever")
    documents = read_documents(file)
    with file.open("rb") as source:
        digest = hashlib.file_digest(source, "blake2b").hexdigest()
    if len(documents) <= IN_MEMORY:
        return IndexRetriever(documents), digest
    return IndexRetriever(documents, cache_folder("search", digest), digest=digest), digest


def describe(env: EnvSection) -> str:
    """Names the sources of questions and evidence in one line."""
    asked = f"questions of {env.data}" if env.data else "questions about an invented world"
    evidence = f"evidence from {', '.join(env.search.url)}" if env.search.url else "BM25 in the server"
    return f"{asked}, {evidence}, {env.search.turns} turns"


def reachable(env: EnvSection) -> None:
    """Asks each retriever of env.search.url once: a wrong one would fail every episode that searches.

    Raises UserError within PROBE_S for each.
    """
    import httpx

    from envservice.search.retrieval import HttpRetriever

    for url in env.search.url:
        try:
            HttpRetriever([url], deadline_s=PROBE_S).search("Who wrote this?", env.search.topk)
        except (EnvFault, httpx.InvalidURL) as error:
            fix = "give env.search.url in full, such as [http://HOST:8000/retrieve], or leave it out"
            raise UserError(f"no retriever answers at {url} ({' '.join(str(error).split())})", fix) from None


SPEC = EnvironmentSpec(
    open=open_environment, describe=describe, reachable=reachable, teacher=TEACHER,
    prompts={"full": SearchFullTemplate, "compact": SearchCompactTemplate},
    threaded=lambda env: bool(env.search.url), stops=("</search>", "</answer>"),
    says_unchanged=False,
)
