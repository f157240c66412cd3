"""The session of one question: search, read, answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from envservice.base import Outcome
from envservice.search import protocol
from envservice.search.questions import Question
from envservice.search.retrieval import BackgroundRetriever, Retriever


class SearchSession:
    """A session that ends with an answer, or with the last of `turns`.

    The results of a search are not a function of the actions, so a lost session is rebuilt from its outcomes. The
    reward is a function of the actions alone.
    """

    def __init__(self, question: Question, retriever: Retriever, *, turns: int, topk: int) -> None:
        self._question = question
        self._retriever = retriever
        self._turns = turns
        self._topk = topk
        self._actions: list[str] = []
        self._begun: dict[str, Future[Sequence[str]]] = {}
        """The search that was foreseen, by its query."""

    def reset(self) -> Outcome:
        self._actions, self._begun = [], {}
        return self._outcome(self._question.question)

    def foresee(self, action: str) -> None:
        """Begins the search of an action, so that a server's games search at the same time."""
        query = None if self._ends(action) else protocol.query_of(action)
        if query and isinstance(self._retriever, BackgroundRetriever):
            self._begun = {query: self._retriever.begin(query, self._topk)}

    def step(self, action: str) -> Outcome:
        """Takes one action. Raises EnvFault if the retriever fails; the step has not been taken then."""
        begun, self._begun = self._begun, {}
        if self._ends(action):
            self._actions.append(action)
            answer = protocol.last_answer("".join(self._actions))
            won = answer is not None and protocol.matches(answer, self._question.golden_answers)
            return self._outcome("", done=True, won=won)
        query = protocol.query_of(action)
        found: Sequence[str] = []
        if query:
            found = begun[query].result() if query in begun else self._retriever.search(query, self._topk)
        self._actions.append(action)
        return self._outcome(protocol.information(found))

    def recall(self, action: str, outcome: Outcome) -> None:  # noqa: ARG002 - no later outcome depends on what was found
        self._actions.append(action)

    def _ends(self, action: str) -> bool:
        return protocol.answers(action) or len(self._actions) + 1 == self._turns

    def _outcome(self, observation: str, *, done: bool = False, won: bool = False) -> Outcome:
        return Outcome(
            observation=observation, admissible_actions=[], reward=float(won), done=done, won=won,
            info={"data_source": self._question.data_source})
