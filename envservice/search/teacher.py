"""The scripted player of the invented world. It looks up the name in the question, then the place found there.

It knows how documents and questions are worded, and otherwise only what it has read in this episode.
"""

from __future__ import annotations

import random
import re

from envservice.base import Outcome
from envservice.search.prompts import found_in
from envservice.spec import Teacher
from services.config.tree import SftSection

_BORN = r"{name} was an? .+?, born in (\S+) in \d+"
_RIVER = r"{name} is a town in .+? It lies on the river (\S+),"
# The question; a fact about the name in it; a fact about the place found there, if that place is not the answer.
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
    """Plays one question. It answers `unknown` if the question is about another world or the documents do not help."""

    def __init__(self, first: Outcome, _rng: random.Random, _sft: SftSection) -> None:
        self._name, self._steps = _route(first.observation)
        self._read = ""
        self._asked: list[str] = []

    def act(self, now: Outcome) -> str:
        self._read += found_in(now.observation)
        name = self._name
        for pattern in self._steps:
            found = re.search(pattern.replace("{name}", re.escape(name)), self._read)
            if found is None:
                return self._search(name)
            name = found[1]
        return f"<answer>{name}</answer>" if self._steps else "<answer>unknown</answer>"

    def _search(self, name: str) -> str:
        if self._asked.count(name) > 1:  # search once more: noise may have replaced the first search
            return "<answer>unknown</answer>"
        self._asked.append(name)
        return f"<search>{name}</search>"


def _route(question: str) -> tuple[str, list[str]]:
    for asked, *steps in _ROUTES:
        if found := re.fullmatch(asked, question):
            return found[1], [step for step in steps if step is not None]
    return "", []


def disturb(action: str, _first: Outcome, _now: Outcome, rng: random.Random) -> str:
    """Returns a search for one word of `action`, to be taken in its place."""
    words = re.sub(r"<[^>]*>", " ", action).split()
    return f"<search>{rng.choice(words or ['river'])}</search>"


TEACHER = Teacher(player=SearchDemonstrator, disturb=disturb)
