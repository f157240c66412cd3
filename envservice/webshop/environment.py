"""WebShop as an Environment: official products if the user has the files, else our catalogue."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from envservice.base import Replay, Session, with_data
from envservice.bm25.index import IN_MEMORY, Index, build, cache_folder, open_or_build
from envservice.webshop import catalogue, files
from envservice.webshop.goals import (
    FAMILY,
    NAMES,
    SEED,
    First500,
    Fixed,
    Goals,
    ShoppingGoal,
    Splits,
    VerlAgent,
    place_of,
    tasks,
)
from envservice.webshop.nouns import Tagger, find_tagger
from envservice.webshop.products import Product, Stock
from envservice.webshop.session import Shop, WebshopSession
from services.config.env import WebshopSection
from services.errors import UserError

VERSION = "1"
"""Raise it whenever a page, an action list, a random draw or a score changes."""
HITS = 50
_ORDERS = 256
"""Number of orders of goals to keep. Only `verl_compat` has more than one."""


class WebshopEnvironment:
    """One shop for all sessions of a process. Its version names all that a score depends on, except the task."""

    replay: Replay = "pure"
    engine = "own"

    def __init__(
        self, stock: Stock, settings: WebshopSection | None = None, *, tagger: tuple[str, Tagger] | None = None,
    ) -> None:
        self._settings = settings or WebshopSection()
        self._stock = stock
        name, nouns = tagger or find_tagger()
        self.name = FAMILY if stock.source == "official" else f"{FAMILY}-{stock.source}"
        self.version = _version(stock, self._settings, name)
        self.tagger = name
        self._goals = lru_cache(maxsize=_ORDERS)(self._draw)
        count = len(self._goals(SEED))
        cut = VerlAgent if self._settings.verl_compat else \
            First500 if self._settings.train_on_rest else Fixed
        self._splits: Splits = cut(count)
        self._index = _index(stock)
        self._shop = Shop(
            search=self.search, by_asin=self._by_asin, nouns=nouns, observation=self._settings.observation,
            show_attributes=self._settings.show_attributes, strict_options=self._settings.strict_options)

    def splits(self) -> list[str]:
        return list(self._splits.names)

    def training_splits(self) -> tuple[str, str, str]:
        return NAMES

    def task_type(self, task: str) -> str:
        """Returns the shop's category of the product for which the goal was written."""
        return self._by_asin(self.goal(task).asin.lower()).category

    def tasks(self, split: str) -> list[str]:
        return sorted(tasks(self._splits, split))

    def digest(self, split: str) -> str:
        total = hashlib.blake2b(digest_size=16)
        for seed in self._splits.seeds(split):
            total.update(f"{split}/{self._splits.indices(split)}/{self._goals(seed).digest}\0".encode())
        return total.hexdigest()

    def task_digest(self, task: str) -> str:
        """Returns the digest of all products and goals, because the results of a search depend on all of them."""
        seed, index = place_of(self._splits, task)
        return hashlib.blake2b(f"{self._goals(seed).digest}/{index}".encode(), digest_size=16).hexdigest()

    def open(self, task: str) -> Session:
        seed, index = place_of(self._splits, task)
        goals = self._goals(seed)
        return WebshopSession(self._shop, goals[index], lambda product: goals.price(self._place(product)))

    def goal(self, task: str) -> ShoppingGoal:
        """Returns the goal of the task. Raises KeyError for an unknown task."""
        seed, index = place_of(self._splits, task)
        return self._goals(seed)[index]

    def search(self, query: str) -> Sequence[Product]:
        """Returns the best products for a query, at most HITS."""
        return [self._by_asin(hit.id.lower()) for hit in self._index.search(query, HITS)]

    def _by_asin(self, asin: str) -> Product:
        return self._stock.products[self._stock.index_of[asin]]

    def _place(self, product: Product) -> int:
        return self._stock.index_of[product.asin.lower()]

    def _draw(self, seed: int) -> Goals:
        return Goals(self._stock, seed)


def open_webshop(data: Path | None, settings: WebshopSection) -> WebshopEnvironment:
    """Opens the shop of a folder with official files, or of our catalogue. Raises UserError for bad files."""
    if data is not None:
        stock = files.load_stock(data, size=settings.products, goals=settings.goals)
        return WebshopEnvironment(stock, settings)
    if settings.goals == "human":
        raise UserError("our catalogue has no human goals", "set env.data to the official files, or env.webshop.goals")
    return WebshopEnvironment(catalogue.stock(), settings)


def _version(stock: Stock, settings: WebshopSection, tagger: str) -> str:
    """Returns the version, such as `1+catalogue+endings-1`. It has the digest of official data, since a task's id is
    only an index."""
    parts = [VERSION, stock.source, tagger]
    parts += [settings.goals] if settings.goals != "synthetic" else []
    parts += [settings.observation] if settings.observation != "text" else []
    chosen = {
        "attributes": settings.show_attributes, "strict-options": settings.strict_options,
        "train-on-rest": settings.train_on_rest, "verl-compat": settings.verl_compat}
    version = "+".join([*parts, *(name for name, on in chosen.items() if on)])
    return with_data(version, stock.digest) if stock.source == "official" else version


def _index(stock: Stock) -> Index:
    def documents():
        return ((product.asin, product.document()) for product in stock.products)

    if len(stock.products) <= IN_MEMORY:
        return build(documents())
    return open_or_build(cache_folder("webshop", stock.digest), stock.digest, documents)
