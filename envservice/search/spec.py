"""The EnvironmentSpec of search QA."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from envservice.base import Environment
from envservice.data_digest import digest_of
from envservice.search.prompts import SearchCompactTemplate, SearchFullTemplate
from envservice.search.teacher import TEACHER
from envservice.spec import EnvironmentSpec
from services.config.tree import EnvSection
from services.errors import EnvFault, UserError

if TYPE_CHECKING:
    from envservice.search.retrieval import Retriever

PROBE_S = 5.0
"""Longest wait for a retriever's first answer."""


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
    from envservice.bm25.build import IN_MEMORY, cache_folder
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
