"""The stock of a shop: products and the instructions of shoppers, from files or from our catalogue."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from envservice.webshop.products import Product


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """The wish of a shopper, before the highest price and (if synthetic) the options are added."""

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
