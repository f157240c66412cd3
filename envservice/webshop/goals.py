"""Goals: the products that sessions should buy. One seed fixes prices, price limits and order in every process.

Legend: a goal is (instruction, combination of option values). The combinations of a product are numbered so that the
last option name in alphabetical order changes fastest. A goal is only a number until it is played: the 1.18 million
products have more goals than fit into memory.

Random draws have the kind and order of the original: a price for every product with a price range, then for each
instruction two of the next four multiples of ten dollars above the price, then a shuffle of all goals by a new
generator with the same seed. With seed 233 the order is the original's. The original's prices differ between processes,
because it draws them without a seed.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

from envservice.webshop.products import Instruction, Stock
from services.errors import UserError

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
    """All goals of a stock in the order of one seed, with the prices drawn by it. Immutable."""

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
    """Returns combination `number` of the options, with their names in alphabetical order."""
    chosen: list[tuple[str, str]] = []
    for name in sorted(options, reverse=True):
        number, digit = divmod(number, len(options[name]))
        chosen.append((name, options[name][digit]))
    return dict(reversed(chosen))


# The splits: goals to train on, to choose checkpoints by, and to report on; and the names of their tasks.
#
# `Fixed`, the default: one order of goals for everyone, cut by index, so that no goal is in two parts:
#
#     test   the first 500          eval   the next 1000          train   the rest         webshop/<split>/<goal index>
#
# test and eval each have at most a sixth of all goals. For the official thousand products and for the human goals,
# these are the splits of the original's evaluation.
#
# `First500` (env.webshop.train_on_rest) holds out the first 500 alone, in the same order: train has all others, and
# `first500` has these 500, of which eval has the even ones and test the odd ones.
#
# `VerlAgent`, to compare with results that verl-agent and its descendants publish: each of its worker groups shuffles
# the goals and draws the prices with its own seed, so index n is a different goal in each. Indices 0-499 are held out,
# but workers with another seed train on most of these goals. Task ids name both: `webshop/<split>/<seed>-<index>`. The
# original has train seeds 0-15 and validation seeds 1000-1127. Here the latter are halved into eval and test, so that
# the best checkpoint is not chosen by the tasks that it is reported on.

FAMILY = "webshop"
TEST, EVAL, SMALLEST_PART = 500, 1000, 6
NAMES = ("train", "eval", "test")
FIRST = "first500"
WORKER_SEEDS = {"train": range(16), "eval": range(1000, 1064), "test": range(1064, 1128)}
"""Seeds of verl-agent's sixteen groups of training workers, and of its 128 validation workers in two halves."""
Place = tuple[int, int]
"""The seed of an order, and an index in it."""


class Splits(Protocol):
    """The places of each split's goals."""

    names: tuple[str, ...]

    def seeds(self, split: str) -> range:
        """Returns the seeds of the orders that the split's tasks name. Raises UserError for an unknown split."""
        ...

    def indices(self, split: str) -> range: ...

    def name(self, place: Place) -> str:
        """Returns the last part of a task id."""
        ...


class Fixed:
    """One order in three parts, with `count` goals in all."""

    names: tuple[str, ...] = NAMES

    def __init__(self, count: int) -> None:
        test, held = min(TEST, count // SMALLEST_PART), min(EVAL, count // SMALLEST_PART)
        self._parts = {"test": range(test), "eval": range(test, test + held), "train": range(test + held, count)}

    def seeds(self, split: str) -> range:
        _check(split, self.names)
        return range(SEED, SEED + 1)

    def indices(self, split: str) -> range:
        return self._parts[split]

    def name(self, place: Place) -> str:
        return str(place[1])


class First500(Fixed):
    """One order, of which the first 500 are held out, or a sixth if there are fewer than 3,000 goals."""

    names = (*NAMES, FIRST)

    def __init__(self, count: int) -> None:
        super().__init__(count)
        held = len(self._parts["test"])
        self._parts = {"eval": range(0, held, 2), "test": range(1, held, 2), FIRST: range(held),
                       "train": range(held, count)}


class VerlAgent:
    """An order for each seed. The first indices are held out."""

    names: tuple[str, ...] = NAMES

    def __init__(self, count: int) -> None:
        held = min(TEST, count // SMALLEST_PART)
        self._parts = {"test": range(held), "eval": range(held), "train": range(held, count)}

    def seeds(self, split: str) -> range:
        _check(split, self.names)
        return WORKER_SEEDS[split]

    def indices(self, split: str) -> range:
        return self._parts[split]

    def name(self, place: Place) -> str:
        return f"{place[0]}-{place[1]}"


def tasks(splits: Splits, split: str) -> Iterator[str]:
    """Yields all task ids of a split. Raises UserError for an unknown split."""
    for seed in splits.seeds(split):
        for index in splits.indices(split):
            yield f"{FAMILY}/{split}/{splits.name((seed, index))}"


def place_of(splits: Splits, task: str) -> Place:
    """Returns the place of a task id's goal. Raises KeyError for an id that `tasks` does not list."""
    environment, _, rest = task.partition("/")
    split, _, name = rest.partition("/")
    numbers = [int(part) for part in name.split("-") if part.isascii() and part.isdigit() and len(part) < 20]
    if environment != FAMILY or split not in splits.names or not numbers:
        raise KeyError(task)
    seeds, indices = splits.seeds(split), splits.indices(split)
    place = (numbers[0] if len(numbers) > 1 else seeds.start, numbers[-1])
    if place[0] not in seeds or place[1] not in indices or f"{FAMILY}/{split}/{splits.name(place)}" != task:
        raise KeyError(task)
    return place


def _check(split: str, names: tuple[str, ...]) -> None:
    if split not in names:
        raise UserError(f"WebShop has no split {split!r}", f"choose one of {', '.join(names)}")
