"""The protocol of Search-R1 (arXiv 2503.09516), as verl-agent's pipeline reads it: prompts, answers, evidence, score.

An answer searches, `<search>query</search>`, or ends the episode, `<answer>text</answer>`. Evidence comes back as
`<information>{"result": "Doc 1: ...\\nDoc 2: ...\\n"}</information>`. An answer scores by exact match.

`full` has the fields and order of verl-agent's pipeline: the question, searches with their results, the instruction.
`compact` is raw text for models of less than a million parameters: the question, then queries with their results. Each
turn has a new prompt.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Iterator, Sequence

from envservice.base import Outcome, ParsedAction, Turn
from envservice.text.response_format import closed

NOTHING_FOUND = "No search results found."
_SEARCH = re.compile("<search>(.*?)</search>", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile("<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
SEARCH_END, ANSWER_END = "</search>", "</answer>"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def parse_action(text: str) -> ParsedAction:
    """Turns an answer into the environment's action.

    The text after the first `</search>` is cut off; if there is none, the text after the first `</answer>`. The action
    is the first search block of the rest, else its first answer block, else empty. The answer is invalid if it has no
    block, opening tags of both kinds, or two of one kind, also in the part that was cut off. Reasoning does not
    matter. The environment receives the action of an invalid answer too.
    """
    kept = text
    for close in (SEARCH_END, ANSWER_END):
        if close in text:
            kept = text.partition(close)[0] + close
            break
    lowered = text.lower()
    searches, answers = lowered.count("<search>"), lowered.count("<answer>")
    valid = searches + answers == 1
    if (match := _search(kept)) is not None:
        return ParsedAction(action=f"<search>{match[1].strip()}</search>", valid=valid)
    if (match := _answer(kept)) is not None:
        return ParsedAction(action=f"<answer>{match[1].strip()}</answer>", valid=valid)
    return ParsedAction(action="", valid=False)


def _search(text: str) -> re.Match[str] | None:
    return _SEARCH.search(closed(text, SEARCH_END, re.IGNORECASE))


def _answer(text: str) -> re.Match[str] | None:
    return _ANSWER.search(closed(text, ANSWER_END, re.IGNORECASE))


def query_of(action: str) -> str:
    """Returns the query of an action, or "" if it has none."""
    match = _search(action)
    return "" if match is None else match[1].strip()


def answers(action: str) -> bool:
    """Returns whether the action ends the episode."""
    return _answer(action) is not None


def last_answer(chat: str) -> str | None:
    """Returns the last answer block in the joined actions, or None."""
    answers = _ANSWER.findall(closed(chat, ANSWER_END, re.IGNORECASE))
    return answers[-1].strip() if answers else None


def information(contents: Sequence[str]) -> str:
    """Formats the documents of one search, best first, as evidence."""
    result = "".join(f"Doc {place}: {text}\n" for place, text in enumerate(contents, start=1)) or NOTHING_FOUND
    return f"<information>{json.dumps({'result': result})}</information>"


def normalised(text: str) -> str:
    """Normalises a text: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def matches(answer: str, golden: Iterable[str]) -> bool:
    """Returns whether the normalised answer equals any of the normalised golden answers."""
    return normalised(answer) in {normalised(text) for text in golden}


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
        return parse_action(text)


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
            lines += [f"S: {query_of(action)}", result_of(outcome).strip()]
        return "\n".join(lines) + "\n"

    def parse(self, text: str) -> ParsedAction:
        return parse_action(text)


def result_of(observation: str) -> str:
    """Returns the documents of an observation without tags and JSON, or "" if it is not a search result."""
    inside = observation.removeprefix("<information>").removesuffix("</information>")
    return json.loads(inside)["result"] if inside != observation else ""
