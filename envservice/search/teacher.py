"""The scripted player of the invented world: looks up whom the question names, then where that leads, then answers.

It knows how documents and questions are worded, and nothing that it has not read in this episode.
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
# Question; what is read about whom it names; what is read about the place found there, if that is not the answer yet.
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
    """Plays one question. Answers `unknown` to one that is not about the invented world, or whose documents fail it."""

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
        if self._asked.count(name) > 1:  # once more, because noise may have taken the place of the first time
            return "<answer>unknown</answer>"
        self._asked.append(name)
        return f"<search>{name}</search>"


def _route(question: str) -> tuple[str, list[str]]:
    for asked, *steps in _ROUTES:
        if found := re.fullmatch(asked, question):
            return found[1], [step for step in steps if step is not None]
    return "", []


def disturb(action: str, _now: Outcome, rng: random.Random) -> str:
    """In place of `action`: a search for one of its words."""
    words = re.sub(r"<[^>]*>", " ", action).split()
    return f"<search>{rng.choice(words or ['river'])}</search>"


TEACHER = Teacher(player=SearchDemonstrator, disturb=disturb)
