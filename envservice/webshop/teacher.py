"""WebShop's demonstrations: the shopper as a Demonstrator, with noise from which it can recover."""

from __future__ import annotations

import random

from envservice.base import Outcome
from envservice.spec import Teacher
from envservice.text.response_format import answer
from envservice.webshop import pages
from envservice.webshop.reader import clicks, instruction_of, parse_request, read
from envservice.webshop.shopper import Shopper, content_words, not_offered
from services.config.tree import SftSection

_AWAY = tuple(name.lower() for name in (pages.DESCRIPTION, pages.FEATURES, pages.REVIEWS, pages.PREVIOUS, pages.BACK))
_FUTILE = 0.5
"""Share of the noise that clicks a wanted option that is not offered, if there is one."""


class WebshopDemonstrator:
    """A Demonstrator that plays the shopper's moves. The reason of a move is the thought."""

    def __init__(self, first: Outcome, rng: random.Random, sft: SftSection) -> None:
        del rng, sft  # its play has no chance
        self._shopper = Shopper(first)

    def act(self, now: Outcome) -> str:
        move = self._shopper.act(now)
        return answer(move.thought, move.action)


def disturb(action: str, first: Outcome, now: Outcome, rng: random.Random) -> str:
    """Returns noise instead of `action`: a search for half of the wish, or any click except a purchase.

    On an item page the click leaves the page, because a wrong option would show nowhere and could not be undone. If a
    wanted option is not offered, half of the noise clicks it: a model that never saw this fail would repeat it forever.
    """
    del action, first
    page, request = read(now), parse_request(instruction_of(now))
    if page.name == "index":
        words = content_words(request.wish)
        return f"search[{' '.join(sorted(rng.sample(words, max(1, len(words) // 2)), key=words.index))}]"
    lacks = not_offered(request, page) if page.name == "item" else []
    if lacks and rng.random() < _FUTILE:
        return f"click[{rng.choice(lacks)}]"
    offered = [thing for thing in clicks(now) if page.name != "item" or thing in _AWAY]
    return f"click[{rng.choice(offered)}]"


TEACHER = Teacher(player=WebshopDemonstrator, disturb=disturb)
