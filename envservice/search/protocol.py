"""The protocol of Search-R1 (arXiv 2503.09516), as verl-agent's pipeline reads it: tags, evidence, exact match.

An answer searches, `<search>query</search>`, or ends the episode, `<answer>text</answer>`. Evidence comes back as
`<information>{"result": "Doc 1: ...\\nDoc 2: ...\\n"}</information>`.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable, Sequence

from envservice.base import ParsedAction
from envservice.text.response_format import closed

NOTHING_FOUND = "No search results found."
_SEARCH = re.compile("<search>(.*?)</search>", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile("<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
SEARCH_END, ANSWER_END = "</search>", "</answer>"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def project(text: str) -> ParsedAction:
    """Turns an answer into the environment's action.

    The text after the first `</search>` is cut off; if there is none, the text after the first `</answer>`. The action
    is the first search block of the rest, else its first answer block, else empty. The answer is invalid if it has no
    block, opening tags of both kinds, or two of one kind, also in the part that was cut off. Reasoning does not
    matter. The environment receives the action in either case.
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
    """Returns the query of an action, or "" if it searches for nothing."""
    match = _search(action)
    return "" if match is None else match[1].strip()


def answers(action: str) -> bool:
    """Says whether the action ends the episode."""
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
    """Says whether the normalised answer equals any of the normalised golden answers."""
    return normalised(answer) in {normalised(text) for text in golden}
