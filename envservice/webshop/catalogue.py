"""Our catalogue, for users without the official files: invented products in the official schema, the same everywhere.

Products come in families of four of one kind. The first is the model. Each of the others has a brand drawn anew, and
differs from the model in one more thing:

    one attribute is replaced by another        one value of an option is missing
    the price is well above the limit of the model's goals

Their titles share words, so a search finds them together. A product has four attributes: one in its title and one in
its first bullet, which the ranking sees, and two in later bullets, which only the page "Features" shows. About half of
the products have an instruction, which asks for two or three of the four. Scores here are not WebShop scores, so
results name the environment `webshop-catalogue`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from envservice.webshop.products import Instruction, Stock, parse_product
from services.seeds import seed_for

WORDS = Path(__file__).with_name("catalogue.json")
"""The file with kinds of products, attributes and option values. A wrong value of `pack` passes the original's fuzzy
match."""
FAMILIES = 6
"""Number of families of each kind."""
SHARE_ASKED = 0.6
_ATTRIBUTES = 4
_FEW = 4
_LEADS = ("Find me", "I need", "I am looking for", "Show me")
_PRAISE = ("every day", "for years", "at home", "on the road", "without fuss", "as a gift", "all season", "in any room")


class Kind(msgspec.Struct, frozen=True):
    """One kind of product. Its products share query, noun and category path."""

    noun: str
    query: str
    path: tuple[str, str]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: float
    """Approximate price of the cheapest product, in dollars."""


class Department(msgspec.Struct, frozen=True):
    """One department. `category` is the shop's name for it; every category path in it begins with `root`."""

    category: str
    root: str
    kinds: tuple[Kind, ...]


class Words(msgspec.Struct, frozen=True):
    """The content of WORDS. `options` maps option names to values."""

    brands: tuple[str, ...]
    series: tuple[str, ...]
    options: dict[str, list[str]]
    departments: tuple[Department, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A product before it has an ASIN."""

    department: Department
    kind: Kind
    brand: str
    series: str
    attributes: tuple[str, ...]
    """The attributes: the first is in the title, the second in the first bullet, the others in later bullets."""
    options: dict[str, list[str]]
    price: float


@lru_cache(maxsize=1)
def stock() -> Stock:
    """Returns the catalogue, which is made once per process."""
    return make_stock(FAMILIES)


def make_stock(families: int) -> Stock:
    """Makes products and instructions, with `families` families of each kind."""
    words, rng = msgspec.json.decode(WORDS.read_bytes(), type=Words), random.Random(seed_for("webshop-catalogue"))
    drafts = list(_Designer(words, rng).drafts(families))
    rng.shuffle(drafts)
    numbers = rng.sample(range(100, 100 + len(drafts) * 5 // 4), len(drafts))
    products = tuple(
        parse_product(_record(draft, f"B{number}", rng), draft.attributes, "our catalogue")
        for draft, number in zip(drafts, numbers, strict=True))
    return Stock(source="catalogue", products=products, instructions=tuple(_instructions(drafts, rng)))


class _Designer:
    """Draws families of products."""

    def __init__(self, words: Words, rng: random.Random) -> None:
        self._words = words
        self._rng = rng

    def drafts(self, families: int) -> Iterator[_Draft]:
        """Yields all products, family by family."""
        for department in self._words.departments:
            for kind in department.kinds:
                for _ in range(families):
                    model = self._model(department, kind)
                    yield from (model, self._other_attribute(model), self._other_option(model), self._dearer(model))

    def _model(self, department: Department, kind: Kind) -> _Draft:
        price = round(kind.price * self._rng.uniform(1.0, 1.5)) + self._rng.choice((0.49, 0.95, 0.99))
        return _Draft(
            department=department, kind=kind, brand=self._brand(), series=self._rng.choice(self._words.series),
            attributes=tuple(self._rng.sample(kind.attributes, _ATTRIBUTES)),
            options={name: self._values(name) for name in kind.options}, price=price)

    def _brand(self) -> str:
        return self._rng.choice(self._words.brands)

    def _values(self, name: str) -> list[str]:
        """Draws three or four values of an option, in the order of the list; three if the list is short."""
        options = self._words.options[name]
        count = 3 if len(options) < _FEW else self._rng.randint(3, 4)
        return sorted(self._rng.sample(options, count), key=options.index)

    def _other_attribute(self, model: _Draft) -> _Draft:
        others = [each for each in model.kind.attributes if each not in model.attributes]
        attributes = list(model.attributes)
        attributes[self._rng.randrange(_ATTRIBUTES)] = self._rng.choice(others)
        return replace(model, brand=self._brand(), attributes=tuple(attributes))

    def _other_option(self, model: _Draft) -> _Draft:
        name = self._rng.choice(list(model.options))
        left = list(model.options[name])
        left.remove(self._rng.choice(left))
        return replace(model, brand=self._brand(), options={**model.options, name: left})

    def _dearer(self, model: _Draft) -> _Draft:
        """Returns a copy with a price above every price limit that a goal of the model may have."""
        return replace(model, brand=self._brand(), price=model.price + self._rng.choice((45.0, 50.0, 60.0)))


def _record(draft: _Draft, asin: str, rng: random.Random) -> dict[str, Any]:
    """Returns a draft as a record in the form of the official product files."""
    noun = draft.kind.noun
    in_title, in_bullet, *hidden = draft.attributes
    rng.shuffle(hidden)
    path = " › ".join((draft.department.root, *draft.kind.path))
    return {
        "asin": asin,
        "name": f"{draft.brand} {draft.series} {in_title} {noun}".title(),
        "category": draft.department.category,
        "query": draft.kind.query,
        "product_category": path,
        "full_description": f"The {draft.series} {noun} by {draft.brand} serves {rng.choice(_PRAISE)}.",
        "small_description": [f"{in_bullet} {noun}".capitalize(), *(each.capitalize() for each in hidden)],
        "pricing": f"${draft.price:.2f}",
        "customization_options": {
            name: [{"value": value, "image": None} for value in values] for name, values in draft.options.items()},
    }


def _instructions(drafts: Sequence[_Draft], rng: random.Random) -> Iterator[Instruction]:
    """Yields instructions. No two ask for the same attributes of one kind, so that no two splits have the same goal."""
    seen: set[tuple[str, frozenset[str]]] = set()
    for index, draft in enumerate(drafts):
        asked = rng.sample(draft.attributes, rng.randint(2, 3))
        wish = (draft.kind.query, frozenset(asked))
        if rng.random() < SHARE_ASKED and wish not in seen:
            seen.add(wish)
            text = f"{rng.choice(_LEADS)} {', '.join(asked[:-1])} {draft.kind.query} with {asked[-1]}"
            yield Instruction(product=index, text=text, attributes=tuple(asked))
