"""Products, parsed from records of the official product files, and the stock of a shop.

A product keeps only the fields that pages, ranking and score need.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.errors import UserError

NO_PRICE = 100.0
"""Price in dollars of a product whose record names none."""
NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product for which the file of synthetic instructions has none."""
LONGEST_ASIN = 10
_FIX = "fix the record, or take the file from the WebShop repository again"
_NOT_PRICE = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product: the fields that pages show and that the score uses."""

    asin: str
    """Its id, up to ten characters, as the file has it: in upper case. Clicks name it in lower case."""
    title: str
    description: str
    bullets: tuple[str, ...]
    """Lines of the page "Features"."""
    category: str
    query: str
    """The query, in lower case, by which the dataset found the product. Products of one kind share it."""
    product_category: str
    """Path such as `Home & Kitchen › Lighting › Table Lamps`."""
    prices: tuple[float, ...]
    """One price in dollars, or the two ends of a range."""
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """Maps option names to values, both in lower case, in page order."""
    attributes: tuple[str, ...]
    """Attributes from the file of synthetic instructions. Pages show them only if env.webshop.show_attributes is
    set."""

    def document(self) -> str:
        """Returns the text that the ranking sees, in lower case: title, description, first bullet, options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, self.bullets[0] if self.bullets else "", options]).lower()


def listed(asin: str) -> bool:
    """Returns whether the shop lists a product with this id."""
    return asin != "nan" and 0 < len(asin) <= LONGEST_ASIN


def parse_product(record: Any, attributes: Sequence[str], where: str) -> Product:
    """Parses one record. Raises UserError if it is malformed. `where` names the record in the error."""
    if not isinstance(record, Mapping):
        raise UserError(f"{where} is not an object", _FIX)
    prices, tag = _prices(record.get("pricing"), where)
    return Product(
        asin=_text(record, "asin", where),
        title=_text(record, "name", where),
        description=_text(record, "full_description", where, default=""),
        bullets=_bullets(record.get("small_description"), where),
        category=sys.intern(_text(record, "category", where)),
        query=sys.intern(_text(record, "query", where).lower().strip()),
        product_category=sys.intern(_text(record, "product_category", where)),
        prices=prices,
        price_tag=tag,
        options=_options(record.get("customization_options"), where),
        attributes=tuple(sys.intern(each) for each in attributes),
    )


def texts(value: Any, where: str) -> tuple[str, ...]:
    """Returns a list of strings as a tuple. Raises UserError for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UserError(f"{where} is not a list of strings", _FIX)
    return tuple(value)


def option_value(value: str) -> str:
    """Returns an option value as pages show it and clicks name it."""
    return value.strip().replace("/", " | ").lower()


def _text(record: Mapping[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    """Returns a string field. A missing or null field gives `default`, if there is one."""
    value = record.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise UserError(f"{where}: {field} is {'missing' if field not in record else 'not a string'}", _FIX)
    return value


def _bullets(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else texts(value, f"{where}: small_description")


def _prices(value: Any, where: str) -> tuple[tuple[float, ...], str]:
    """Parses `$12.99`, or `$10.00$20.00` for a range. An empty field means NO_PRICE."""
    if not value:
        return (NO_PRICE,), f"${NO_PRICE}"
    try:
        prices = tuple(float(_NOT_PRICE.sub("", part)) for part in value.split("$")[1:3])
    except (ValueError, AttributeError):
        prices = ()
    if not prices:
        raise UserError(f"{where}: pricing is not a price: {value!r}", _FIX)
    return prices, " to ".join(f"${price}" for price in prices)


def _options(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not value:
        return {}
    try:
        return {
            sys.intern(name.lower()): tuple(sys.intern(option_value(each["value"])) for each in contents)
            for name, contents in value.items()
            if contents is not None
        }
    except (AttributeError, KeyError, TypeError):
        raise UserError(f"{where}: customization_options are not lists of values by name", _FIX) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """The request of a shopper, before the price limit and (if synthetic) the options are added."""

    product: int
    """Index of the product for which it was written."""
    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None
    """Option values that a person asked for. None: synthetic, each combination of the product's options is a goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """The immutable stock that all sessions of a process share."""

    source: str
    """`official` or `catalogue`. Versions and results name it."""
    products: tuple[Product, ...]
    instructions: tuple[Instruction, ...]
    """Instructions, in the order of their products."""
    index_of: dict[str, int] = field(init=False, repr=False)
    """Maps a lower-case ASIN to its product."""
    digest: str = field(init=False)
    """blake2b over products and instructions, in order: the same on every machine."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_of", {each.asin.lower(): n for n, each in enumerate(self.products)})
        object.__setattr__(self, "digest", _digest((self.products, self.instructions)))


def _digest(parts: Iterable[Iterable[Product | Instruction]]) -> str:
    total, encoder = hashlib.blake2b(digest_size=16), msgspec.json.Encoder()
    for part in parts:
        for each in part:
            total.update(encoder.encode(each))
        total.update(b"\0")
    return total.hexdigest()
