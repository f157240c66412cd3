"""Search QA as an Environment: questions of the user's files, or about an invented world if there are none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

from envservice.base import Outcome, RecordedSession, Replay, with_data
from envservice.search import prompts
from envservice.search.questions import SPLITS, Question, Questions, Split
from envservice.search.retrieval import BackgroundRetriever, Retriever
from services.errors import UserError


class SearchSession:
    """A session that ends with an answer, or with the last of `turns`.

    The results of a search are not a function of the actions, so a lost session is rebuilt from its outcomes. The
    reward is a function of the question and the actions.
    """

    def __init__(self, question: Question, retriever: Retriever, *, turns: int, topk: int) -> None:
        self._question = question
        self._retriever = retriever
        self._turns = turns
        self._topk = topk
        self._actions: list[str] = []
        self._begun: dict[str, Future[Sequence[str]]] = {}
        """The search that `foresee` has begun, by its query. At most one."""

    def reset(self) -> Outcome:
        self._actions, self._begun = [], {}
        return self._outcome(self._question.question)

    def foresee(self, action: str) -> None:
        """Begins the search of an action in the background, so that a server's games search at the same time."""
        query = None if self._ends(action) else prompts.query_of(action)
        if query and isinstance(self._retriever, BackgroundRetriever):
            self._begun = {query: self._retriever.begin(query, self._topk)}

    def step(self, action: str) -> Outcome:
        """Takes one action. Raises EnvFault if the retriever fails, and then the step is not taken."""
        begun, self._begun = self._begun, {}
        if self._ends(action):
            self._actions.append(action)
            answer = prompts.last_answer("".join(self._actions))
            won = answer is not None and prompts.matches(answer, self._question.golden_answers)
            return self._outcome("", done=True, won=won)
        query = prompts.query_of(action)
        documents: Sequence[str] = []
        if query:
            documents = begun[query].result() if query in begun else self._retriever.search(query, self._topk)
        self._actions.append(action)
        return self._outcome(prompts.information(documents))

    def recall(self, action: str, outcome: Outcome) -> None:  # noqa: ARG002 - no later outcome depends on it
        self._actions.append(action)

    def _ends(self, action: str) -> bool:
        return prompts.answers(action) or len(self._actions) + 1 == self._turns

    def _outcome(self, observation: str, *, done: bool = False, won: bool = False) -> Outcome:
        return Outcome(
            observation=observation, admissible_actions=[], reward=float(won), done=done, won=won,
            info={"data_source": self._question.data_source})


VERSION = "1"
"""Raise it whenever an observation or a score changes."""
TURNS = 4
TOPK = 3


class SearchEnvironment:
    """One task for each question, `<name>/<split>/<row>`, the row in six digits."""

    replay: Replay = "transcript"
    engine = "search-r1"

    def __init__(
        self, name: str, questions: Questions, retriever: Retriever, *, turns: int = TURNS, topk: int = TOPK,
        data: str = "",
    ) -> None:
        """`name` is `search`, or `search-gen` for the invented world. `data`: the digest of the user's questions and
        documents; empty for the invented world."""
        self.name = name
        version = f"{VERSION}-{turns}-{topk}"
        self.version = with_data(version, data) if data else version
        self._questions = questions
        self._retriever = retriever
        self._turns = turns
        self._topk = topk

    def splits(self) -> list[str]:
        return list(SPLITS)

    def training_splits(self) -> tuple[str, str, str]:
        return SPLITS[0], SPLITS[1], SPLITS[2]

    def task_type(self, task: str) -> str:
        """Returns the data source of the task's question."""
        return self.question(task).data_source

    def tasks(self, split: str) -> list[str]:
        rows = self._rows(split)
        if rows is None:
            raise UserError(f"{self.name} has no split {split!r}", f"choose {', '.join(SPLITS)}")
        if not rows:
            raise UserError(f"the split {split} of {self.name} has no question", "add questions to env.data")
        return [f"{self.name}/{split}/{row:06d}" for row in range(len(rows))]

    def digest(self, split: str) -> str:
        total = hashlib.blake2b(digest_size=16)
        for task in self.tasks(split):
            total.update(task.encode() + b"\0" + hashlib.blake2b(self.question(task).content).digest())
        return total.hexdigest()

    def task_digest(self, task: str) -> str:
        return hashlib.blake2b(self.question(task).content, digest_size=16).hexdigest()

    def open(self, task: str) -> RecordedSession:
        return SearchSession(self.question(task), self._retriever, turns=self._turns, topk=self._topk)

    def question(self, task: str) -> Question:
        """Returns the task's question. Raises KeyError for an unknown task."""
        name, _, place = task.partition("/")
        split, _, row = place.partition("/")
        rows = self._rows(split)
        number = int(row) if row.isascii() and row.isdecimal() else -1
        if name != self.name or rows is None or f"{number:06d}" != row or number >= len(rows):
            raise KeyError(task)
        return rows[number]

    def _rows(self, split: str) -> tuple[Question, ...] | None:
        return self._questions.get(cast("Split", split))  # None for any other text
