"""The scripted shopper of the cold start's demonstrations. It knows only what it has read.

It searches with words of the instruction. It opens results whose price fits, those with more words of the wish in their
titles first. It checks that every wanted option is offered, reads "Features" for words that the title lacks, picks the
options and buys. Before its steps run out it buys the best product that it has seen.

It uses neither the goal's product nor the attributes that the score counts, because no page shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from envservice.base import Outcome
from envservice.webshop import pages
from envservice.webshop.reader import ListedProduct, Page, Request, instruction_of, parse_request, read

STEPS = 15
"""Steps of a published episode, within which the shopper plans to buy."""
_LEAD = re.compile(
    r"(?:find me|show me|i need|i want|i would like|i(?:'m| am) (?:looking|searching) for) ", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_IDLE = frozenset((
    "a", "an", "and", "are", "for", "in", "is", "it", "me", "my", "of", "on", "or", "some", "that", "the", "to",
    "with"))
_FEATURES = f"click[{pages.FEATURES.lower()}]"
_BUY = f"click[{pages.BUY.lower()}]"
_PREVIOUS = f"click[{pages.PREVIOUS.lower()}]"
_NEXT = f"click[{pages.NEXT.lower()}]"


@dataclass(frozen=True, slots=True)
class ShopperMove:
    """An action with its reason."""

    thought: str
    action: str


@dataclass(slots=True)
class Known:
    """The facts that were read about a product."""

    listed: ListedProduct
    place: int
    """Its place in the order of discovery."""
    missing: list[str]
    """Wanted words that are neither in its title nor, once read, in its features."""
    lacks: list[str] | None = None
    """Wanted option values that it does not offer. None before it was opened."""
    read: bool = False
    """Whether its features were read."""

    def worth(self) -> tuple[int, int, int]:
        """Returns its rank for a purchase. A higher one is better."""
        return -len(self.lacks or ()), -len(self.missing), -self.place


class Shopper:
    """Plays one episode from its first outcome."""

    def __init__(self, first: Outcome) -> None:
        self._request = parse_request(instruction_of(first))
        self._wanted = content_words(_LEAD.sub("", self._request.wish))
        self._known: dict[str, Known] = {}
        self._clicked = ""
        """ASIN of the product that it opened last."""
        self._chosen: set[str] = set()
        self._pending = ""
        """The option value that it clicked last. It is chosen if the same page comes back."""
        self._left = STEPS

    def act(self, now: Outcome) -> ShopperMove:
        """Reads the latest outcome and decides. Call it once per step, whatever the last action led to."""
        page = read(now)
        if page.name == "item" and self._pending:
            self._chosen.add(self._pending)
        elif page.name in ("index", "results"):
            self._chosen = set()
        self._pending = ""
        move = self._decide(page)
        self._left -= 1
        return move

    def _decide(self, page: Page) -> ShopperMove:
        if page.name == "results":
            return self._choose(page)
        if page.name == "item":
            return self._consider(page)
        return self._read(page) if page.name == "sub" else ShopperMove("search", f"search[{' '.join(self._wanted)}]")

    def _choose(self, page: Page) -> ShopperMove:
        """Opens the most promising result, or searches further, or returns to the best one."""
        for each in page.results:
            missing = missing_words(self._wanted, each.title)
            self._known.setdefault(each.asin, Known(each, len(self._known), missing))
        here = [self._known[each.asin] for each in page.results if self._affordable(each)]
        new = [each for each in here if each.lacks is None]
        best = max((each for each in here if each.lacks is not None), key=Known.worth, default=None)
        if best is not None and (self._left <= self._needed() + 1 or not new):
            return self._opening("best seen", best)
        if new:
            return self._opening("may fit", max(new, key=Known.worth))
        return ShopperMove("none fits", _NEXT if page.results else f"click[{pages.BACK.lower()}]")

    def _opening(self, thought: str, product: Known) -> ShopperMove:
        self._clicked = product.listed.asin
        return ShopperMove(thought, f"click[{product.listed.asin}]")

    def _read(self, page: Page) -> ShopperMove:
        product = self._known.get(self._clicked)
        if product is not None and page.lines:
            product.missing = missing_words(product.missing, *page.lines)
        return ShopperMove("back to the item", _PREVIOUS)

    def _consider(self, page: Page) -> ShopperMove:
        product = self._product(page)
        product.lacks = not_offered(self._request, page)
        final = self._left <= self._needed() + 1
        if not final and product.lacks:
            return ShopperMove(f"no [{product.lacks[0]}]", _PREVIOUS)
        if not final and product.missing and not product.read:
            product.read = True
            return ShopperMove("more?", _FEATURES)
        best = max(self._known.values(), key=Known.worth)
        if not final and product.missing and self._hopeful(product, best):
            return ShopperMove("something else may fit better", _PREVIOUS)
        for name, value in self._request.options.items():
            if value not in product.lacks and value not in self._chosen:
                self._pending = value
                return ShopperMove(f"{name}: [{value}]", f"click[{value}]")  # copied from the thought
        return ShopperMove("buy", _BUY)

    def _hopeful(self, product: Known, best: Known) -> bool:
        """Says whether a known product is better, or an unread one may be."""
        return best is not product or any(
            each.lacks is None and self._affordable(each.listed) for each in self._known.values())

    def _product(self, page: Page) -> Known:
        """Finds the open product by title and price, since the page does not name its ASIN."""
        shown = (page.title, page.price)
        same = [each for each in self._known.values() if (each.listed.title, each.listed.price) == shown]
        product = next((each for each in same if each.listed.asin == self._clicked), None) or next(iter(same), None)
        if product is None:
            listed = ListedProduct(asin=page.title, title=page.title, price=page.price)
            product = self._known.setdefault(
                listed.asin, Known(listed, len(self._known), missing_words(self._wanted, page.title)))
        self._clicked = product.listed.asin
        return product

    def _affordable(self, product: ListedProduct) -> bool:
        return self._request.limit is None or price_of(product.price) <= self._request.limit

    def _needed(self) -> int:
        """Returns the number of steps from a results page to the purchase, both clicks included."""
        return len(self._request.options) + 2


def not_offered(request: Request, page: Page) -> list[str]:
    """Returns the wanted option values that an item page lacks."""
    offered = {value for values in page.options.values() for value in values}
    return [value for value in request.options.values() if value not in offered]


def content_words(text: str) -> list[str]:
    """Returns the words that are not stop words, in lower case, in order, without repeats."""
    words = (word for word in _WORD.findall(text.lower()) if word not in _IDLE)
    return list(dict.fromkeys(words))


def missing_words(wanted: Iterable[str], *texts: str) -> list[str]:
    """Returns the words of `wanted` that the texts lack. Singular and plural count as one."""
    words = {_singular(word) for text in texts for word in _WORD.findall(text.lower())}
    return [word for word in wanted if _singular(word) not in words]


def price_of(tag: str) -> float:
    """Reads the dollars of a price tag. For a range it is the upper end."""
    return float(tag.rpartition("$")[2])


def _singular(word: str) -> str:
    if word.endswith("es") and word[:-2].endswith(("sh", "ch", "x", "s")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
