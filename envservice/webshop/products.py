"""One product, read from a record of the official product files. Only what pages, ranking and score need is kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.errors import UserError

NO_PRICE = 100.0
"""Of a product whose record names none."""
NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Of a product that the attribute file does not know."""
LONGEST_ASIN = 10
_MEND = "fix the record, or take the file from the WebShop repository again"
_NOT_PRICE = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What a shopper can read of it, and what the score looks at."""

    asin: str
    """Its id, up to ten characters, shown in upper case as the file has it."""
    title: str
    description: str
    bullets: tuple[str, ...]
    """The page "Features", one entry each."""
    category: str
    query: str
    """The search, in lower case, that the product was found by: products of one kind share it."""
    product_category: str
    """Path such as `Home & Kitchen › Lighting › Table Lamps`."""
    prices: tuple[float, ...]
    """Dollars: one price, or the two ends of a range."""
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """Option name to its values, both in lower case, in page order."""
    attributes: tuple[str, ...]
    """Of the attribute file; no page shows them unless asked to."""

    def document(self) -> str:
        """The text that ranking sees: title, description, first bullet, options; in lower case."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, self.bullets[0] if self.bullets else "", options]).lower()


def listed(asin: str) -> bool:
    """Whether a product of this id is in the shop at all."""
    return asin != "nan" and 0 < len(asin) <= LONGEST_ASIN


def parse_product(record: Any, attributes: Sequence[str], where: str) -> Product:
    """The product of one record. `where` names it in the UserError that a malformed one raises."""
    if not isinstance(record, Mapping):
        raise UserError(f"{where} is not an object", _MEND)
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
    """A list of strings. Raises UserError for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UserError(f"{where} is not a list of strings", _MEND)
    return tuple(value)


def option_value(value: str) -> str:
    """An option value as pages show it and clicks name it."""
    return value.strip().replace("/", " | ").lower()


def _text(record: Mapping[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    """A string field; null counts as `default` where there is one."""
    value = record.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise UserError(f"{where}: {field} is {'missing' if field not in record else 'not a string'}", _MEND)
    return value


def _bullets(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else texts(value, f"{where}: small_description")


def _prices(value: Any, where: str) -> tuple[tuple[float, ...], str]:
    """`$12.99`, or `$10.00$20.00` for a range; nothing at all costs a hundred dollars."""
    if not value:
        return (NO_PRICE,), f"${NO_PRICE}"
    try:
        prices = tuple(float(_NOT_PRICE.sub("", part)) for part in value.split("$")[1:3])
    except (ValueError, AttributeError):
        prices = ()
    if not prices:
        raise UserError(f"{where}: pricing is no price: {value!r}", _MEND)
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
        raise UserError(f"{where}: customization_options are not lists of values by name", _MEND) from None
