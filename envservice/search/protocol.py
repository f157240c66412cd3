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

NOTHING_FOUND = "No search results found."
_SEARCH = re.compile("<search>(.*?)</search>", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile("<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def project(text: str) -> ParsedAction:
    """Answer to environment action.

    What follows the first `</search>`, or without one the first `</answer>`, is cut off. Of the rest the first search
    block is the action, else the first answer block, else nothing. Invalid: no block, an opening tag of both kinds
    anywhere, or two of one kind, also in what was cut off. Reasoning is not looked at. The environment receives the
    action either way.
    """
    kept = text
    for close in ("</search>", "</answer>"):
        if close in text:
            kept = text.partition(close)[0] + close
            break
    lowered = text.lower()
    searches, answers = lowered.count("<search>"), lowered.count("<answer>")
    valid = searches + answers == 1
    if (found := _SEARCH.search(kept)) is not None:
        return ParsedAction(action=f"<search>{found[1].strip()}</search>", valid=valid)
    if (found := _ANSWER.search(kept)) is not None:
        return ParsedAction(action=f"<answer>{found[1].strip()}</answer>", valid=valid)
    return ParsedAction(action="", valid=False)


def query_of(action: str) -> str:
    """What an action searches for; empty where it searches for nothing."""
    found = _SEARCH.search(action)
    return "" if found is None else found[1].strip()


def answers(action: str) -> bool:
    """Whether the action ends the episode."""
    return _ANSWER.search(action) is not None


def last_answer(chat: str) -> str | None:
    """The last answer block of all actions in a row; None without one."""
    found = _ANSWER.findall(chat)
    return found[-1].strip() if found else None


def information(contents: Sequence[str]) -> str:
    """The evidence of one search, best first."""
    result = "".join(f"Doc {place}: {text}\n" for place, text in enumerate(contents, start=1)) or NOTHING_FOUND
    return f"<information>{json.dumps({'result': result})}</information>"


def normalised(text: str) -> str:
    """In lower case, without punctuation, without articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def matches(answer: str, golden: Iterable[str]) -> bool:
    """Exact match, normalised, with any of the golden answers."""
    return normalised(answer) in {normalised(text) for text in golden}
