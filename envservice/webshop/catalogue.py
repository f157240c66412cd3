"""Our catalogue, for all who have no official files: invented products in the official schema, the same everywhere.

Products come in families of four of one kind. The first is the model; each other is like it but for one thing:

    another attribute, in place of one of the model's        a value of an option that the model has is missing
    a price that is well above what the model's goals allow

They share the words of their titles, so a search finds them together. Of a product's four attributes one stands in its
title and one in its first bullet, which ranking sees; two stand in later bullets, where only a reader of the page
"Features" finds them. About half of the products have an instruction; it asks for two or three of the four.
Scores here are not WebShop scores, hence the name `webshop-catalogue` in results.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from envservice.webshop.products import parse_product
from envservice.webshop.stock import Instruction, Stock
from services.seeds import seed_for

WORDS = Path(__file__).with_name("catalogue.json")
"""Kinds of products, what they can be, what they come in. In `pack` a wrong value passes the original's fuzzy match."""
FAMILIES = 6
"""Of each kind."""
SHARE_ASKED = 0.6
_ATTRIBUTES = 4
_FEW = 4
_LEADS = ("Find me", "I need", "I am looking for", "Show me")
_PRAISE = ("every day", "for years", "at home", "on the road", "without fuss", "as a gift", "all season", "in any room")


class Kind(msgspec.Struct, frozen=True):
    """Products of one kind share query, noun and category path."""

    noun: str
    query: str
    path: tuple[str, str]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: float
    """Dollars that the cheapest cost about."""


class Department(msgspec.Struct, frozen=True):
    """`category` is the shop's word for it, `root` starts every category path."""

    category: str
    root: str
    kinds: tuple[Kind, ...]


class Words(msgspec.Struct, frozen=True):
    """The file of words. `options`: values by option name."""

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
    """The first stands in the title, the second in the first bullet."""
    options: dict[str, list[str]]
    price: float


@lru_cache(maxsize=1)
def stock() -> Stock:
    """The catalogue, made once per process."""
    return make_stock(FAMILIES)


def make_stock(families: int) -> Stock:
    """Products and instructions, with so many families of each kind."""
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
        """All products, family by family."""
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
        """Three values or four, in the order of the list; of few, three."""
        known = self._words.options[name]
        count = 3 if len(known) < _FEW else self._rng.randint(3, 4)
        return sorted(self._rng.sample(known, count), key=known.index)

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
        """Above all of the next four tens of dollars, of which a goal's highest price is one."""
        return replace(model, brand=self._brand(), price=model.price + self._rng.choice((45.0, 50.0, 60.0)))


def _record(draft: _Draft, asin: str, rng: random.Random) -> dict[str, Any]:
    """In the form of the official product files."""
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
    """No two ask for the same attributes of one kind, so that no goal is in two splits under two names."""
    seen: set[tuple[str, frozenset[str]]] = set()
    for index, draft in enumerate(drafts):
        asked = rng.sample(draft.attributes, rng.randint(2, 3))
        wish = (draft.kind.query, frozenset(asked))
        if rng.random() < SHARE_ASKED and wish not in seen:
            seen.add(wish)
            text = f"{rng.choice(_LEADS)} {', '.join(asked[:-1])} {draft.kind.query} with {asked[-1]}"
            yield Instruction(product=index, text=text, attributes=tuple(asked))
