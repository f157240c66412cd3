"""One shopping session: a page, an action, the next page. It is a pure function of goal and actions.

    search[words]    from any page, to the first page of results
    click[thing]     only what the page offers, in lower case; `search` itself does nothing
    anything else    changes nothing

Only a purchase ends a session. The original treats some queries as commands (`<r>`, `<a>`, `<c>`, `<q>`). Here they are
ordinary words: an agent that learns them reads the shelves instead of searching.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envservice.base import Outcome
from envservice.webshop import pages
from envservice.webshop.goals import ShoppingGoal
from envservice.webshop.nouns import Tagger
from envservice.webshop.pages import Format, ShopState
from envservice.webshop.products import Product
from envservice.webshop.reward import Purchase, Score, score

SEARCH_ACTION = "search[<your query>]"
"""The entry for a search in the list of admissible actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The immutable data that all sessions of a server share."""

    search: Callable[[str], Sequence[Product]]
    """Maps a query to ranked products, at most fifty."""
    by_asin: Callable[[str], Product]
    """Products by lower-case ASIN."""
    nouns: Tagger
    observation: Format = "text"
    show_attributes: bool = False
    strict_options: bool = False


class WebshopSession:
    """One play of one goal. `price` returns the dollars of a product, which were drawn with the goals."""

    def __init__(self, shop: Shop, goal: ShoppingGoal, price: Callable[[Product], float]) -> None:
        self._shop = shop
        self._goal = goal
        self._price = price
        self._state = ShopState(instruction=goal.instruction)

    def reset(self) -> Outcome:
        self._state = ShopState(instruction=self._goal.instruction)
        return self._outcome()

    def step(self, action: str) -> Outcome:
        name, argument = parse_action(action)
        if name == "search" and argument:
            self._search(argument)
        elif name == "click" and argument != "search" and argument in self._clickables():
            bought = self._click(argument)
            if bought is not None:
                return self._bought(bought)
        else:
            return self._outcome(unchanged=True)
        return self._outcome()

    def _search(self, query: str) -> None:
        state = self._state
        state.keywords = query.split(" ")
        state.hits = self._shop.search(query)
        self._to_results(1)

    def _click(self, thing: str) -> Score | None:
        """Takes a click. Returns the score of a purchase, None for any other click."""
        state = self._state
        if thing == pages.BUY.lower():
            return score(
                self._goal, Purchase(product=state.opened(), price=self._price(state.opened()), options=state.options),
                self._shop.nouns, strict=self._shop.strict_options)
        if thing == pages.BACK.lower():
            self._state = ShopState(instruction=state.instruction)
        elif thing == pages.NEXT.lower() and state.page == "results":
            self._to_results(state.number + 1)
        elif thing == pages.PREVIOUS.lower():
            self._back()
        elif thing in pages.SUB_PAGES:
            state.page, state.sub = "sub", pages.SUB_PAGES[thing]
        elif state.page == "results":
            state.page, state.product = "item", self._shop.by_asin(thing)
            state.visited.add(state.product.asin)
        else:
            self._choose(thing)
        return None

    def _back(self) -> None:
        state = self._state
        if state.page == "sub":
            state.page = "item"
        else:
            self._to_results(state.number - 1 if state.page == "results" else state.number)

    def _choose(self, value: str) -> None:
        """Chooses an option value. If two options have it, the last one on the page is chosen."""
        options = self._state.opened().options
        name = next(name for name in reversed(list(options)) if value in options[name])
        self._state.options[name] = value

    def _to_results(self, number: int) -> None:
        """Leaves an item page, and forgets the product and the chosen options."""
        state = self._state
        state.page, state.number, state.product, state.options = "results", number, None, {}

    def _bought(self, bought: Score) -> Outcome:
        self._state.page, self._state.total = "done", bought.total
        won = bought.total == 1.0
        return Outcome(
            observation=pages.render(self._state, self._shop.observation, attributes=self._shop.show_attributes),
            admissible_actions=[], reward=float(won), done=True, won=won,
            info={"task_score": bought.total, **bought.parts()})

    def _clickables(self) -> list[str]:
        return pages.clickables(self._state, attributes=self._shop.show_attributes)

    def _outcome(self, *, unchanged: bool = False) -> Outcome:
        clicks = [f"click[{thing}]" for thing in self._clickables()]
        return Outcome(
            observation=pages.render(self._state, self._shop.observation, attributes=self._shop.show_attributes),
            admissible_actions=[SEARCH_ACTION, *clicks] if self._state.page == "index" else clicks,
            info={"task_score": 0.0}, unchanged=unchanged)


def parse_action(action: str) -> tuple[str, str]:
    """Splits `name[argument]` into name and lower-case argument, which is "" if there is none.

    It equals a match of `(.+)\\[(.+)\\]` at the start, but in linear time: the last closing bracket of the first line
    ends the argument, the last opening one before it starts it, and the text after it is ignored.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else (action, "")
