"""Goals: the products that sessions should buy. One seed fixes prices, price limits and order in every process.

Legend: a goal is (instruction, combination of option values); the combinations of a product are numbered like the
digits of a clock, the last option name turning fastest. Goals are numbers until one is played: the 1.18 million
products have many more of them than memory has room for.

Random draws have the kind and order of the original: a price for every product with a price range, then for each
instruction two of the next four multiples of ten dollars above the price, then a shuffle of all goals by a fresh
generator of that seed. With seed 233 the order is the original's. The original's prices differ between processes,
because it draws them without a seed.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from envservice.webshop.stock import Instruction, Stock

SEED = 233
NO_LIMIT = 1_000_000.0
"""The price limit of a goal that names none, in dollars."""
_LIMITS = [10.0 * n for n in range(1, 100)]
_NEAREST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShoppingGoal:
    """The request of a goal, and the product for which it was written. Other products may fit too."""

    asin: str
    title: str
    query: str
    product_category: str
    instruction: str
    """The instruction, as every page shows it."""
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    """Wanted options. Synthetic goals: value by option name. Human goals: values only."""
    price_upper: float
    """The highest price that fits, in dollars."""


class Goals:
    """All goals of a stock in the order of one seed, with the prices that this seed drew. Immutable."""

    def __init__(self, stock: Stock, seed: int = SEED) -> None:
        self._stock = stock
        rng = random.Random(seed)
        self._drawn = {
            number: rng.uniform(*product.prices)
            for number, product in enumerate(stock.products) if len(product.prices) > 1
        }
        self._limits = [_limit(self.price(each.product), rng) for each in stock.instructions]
        counts = [_combinations(stock, each) for each in stock.instructions]
        self._starts = [0, *itertools.accumulate(counts)]
        self._order = array("q", range(self._starts[-1]))
        random.Random(seed).shuffle(self._order)  # pyright: ignore[reportArgumentType] - an array is shuffled like a list
        drawn = repr((sorted(self._drawn.items()), self._limits)).encode()
        self.digest = hashlib.blake2b(
            stock.digest.encode() + self._order.tobytes() + drawn, digest_size=16).hexdigest()
        """Digest of products, instructions, prices and order."""

    def __len__(self) -> int:
        return len(self._order)

    def price(self, product: int) -> float:
        """Returns the price in dollars of the product with this index."""
        return self._drawn.get(product, self._stock.products[product].prices[0])

    def __getitem__(self, index: int) -> ShoppingGoal:
        """Returns the goal at an index of the shuffled order."""
        number = self._order[index]
        which = bisect_right(self._starts, number) - 1
        instruction, limit = self._stock.instructions[which], self._limits[which]
        product = self._stock.products[instruction.product]
        options = instruction.options
        text = instruction.text
        if options is None:
            options = _combination(product.options, number - self._starts[which])
            named = ", and ".join(f"{name}: {value}" for name, value in options.items())
            text += f" with {named}" if named else ""
        if limit is not None:
            text += f", and price lower than {limit:.2f} dollars"
        return ShoppingGoal(
            asin=product.asin, title=product.title, query=product.query, product_category=product.product_category,
            instruction=text, attributes=instruction.attributes, options=options,
            price_upper=NO_LIMIT if limit is None else limit,
        )  # fmt: skip


def _limit(price: float, rng: random.Random) -> float | None:
    """Draws the price limit: the larger of two multiples of ten dollars above the price. None if there are fewer."""
    above = [limit for limit in _LIMITS if limit > price][:_NEAREST]
    return max(rng.sample(above, 2)) if len(above) > 1 else None


def _combinations(stock: Stock, instruction: Instruction) -> int:
    if instruction.options is not None:
        return 1
    return prod(len(values) for values in stock.products[instruction.product].options.values())


def _combination(options: Mapping[str, tuple[str, ...]], number: int) -> dict[str, str]:
    """Returns combination `number` of the options, whose names are taken in alphabetical order."""
    chosen: list[tuple[str, str]] = []
    for name in sorted(options, reverse=True):
        number, digit = divmod(number, len(options[name]))
        chosen.append((name, options[name][digit]))
    return dict(reversed(chosen))
