"""The two prompts of search QA. They are rebuilt at every turn, and protocol.project reads the answers.

`full` has the fields and order of verl-agent's pipeline: the question, searches with their results, the instruction.
`compact` is raw text for models of less than a million parameters: the question, then queries with their results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from envservice.base import Outcome, ParsedAction, Turn
from envservice.search.protocol import project, query_of


def _recent(turns: Sequence[Turn], now: Outcome, history: int) -> Iterator[tuple[int, str, str]]:
    """Yields (step, action, result) of the last `history` steps. The result of a step is the next observation."""
    outcomes = [turn.observation for turn in turns[1:]] + [now.observation]
    for place in range(max(0, len(turns) - history), len(turns)):
        yield place + 1, turns[place].action, outcomes[place]


class SearchFullTemplate:
    """The prompt as one user message per turn."""

    name = "full"
    chat = True

    def __init__(self, history: int = 4) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. The first turn has no history, and no turn has one if `history` is 0."""
        recent = _recent(turns, now, self.history)
        past = "\n".join(f"Step {step}:{action} {outcome}" for step, action, outcome in recent)
        so_far = (
            f"You have already taken {len(turns)} step(s). The most recent ones, each search followed by the "
            f"information that it returned:\n{past}\n\n" if past else "")
        return f"{_ROLE}\nThe question: {first.observation}\n\n{so_far}{_INSTRUCTION}"

    def parse(self, text: str) -> ParsedAction:
        return project(text)


_ROLE = "You are an expert agent that answers a question by calling a search engine step by step."
_INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason step by step about what is known and what is missing; this reasoning MUST be enclosed within <think> "
    "</think> tags.\n"
    "Then do exactly one of two things:\n"
    "- if knowledge is missing, search for it: <search> your query </search>\n"
    "- if you know enough, give the final answer, short and without explanation: <answer> your answer </answer>"
)


class SearchCompactTemplate:
    """Lines of raw text: Q for the question, then for each recent step S with its result."""

    name = "compact"
    chat = False

    def __init__(self, history: int = 4) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        lines = [f"Q: {first.observation}"]
        for _, action, outcome in _recent(turns, now, self.history):
            lines += [f"S: {query_of(action)}", _plain(outcome)]
        return "\n".join(lines) + "\n"

    def parse(self, text: str) -> ParsedAction:
        return project(text)


def _plain(observation: str) -> str:
    """Returns the documents of an observation without tags and JSON."""
    return found_in(observation).strip()


def found_in(observation: str) -> str:
    """Returns the text that a search found, or "" if the observation is not a search result."""
    inside = observation.removeprefix("<information>").removesuffix("</information>")
    return json.loads(inside)["result"] if inside != observation else ""
