"""One shopping session: a page, an action, the next page. It is a pure function of goal and actions.

    search[words]    from any page, to the first page of results
    click[thing]     only what the page offers, in lower case; `search` itself does nothing
    anything else    changes nothing

Only a purchase ends a session. The original treats some queries as commands (`<r>`, `<a>`, `<c>`, `<q>`). Here they are
ordinary words: an agent that learned them would list products without searching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from envservice.base import RULE, Outcome
from envservice.webshop import pages
from envservice.webshop.goals import ShoppingGoal
from envservice.webshop.nouns import Tagger
from envservice.webshop.pages import Format, ShopState
from envservice.webshop.products import Product, option_value

# The score of a purchase: WebShop (Yao et al. 2022, arXiv 2207.01206, equation 1), as the original's code computes it.
#
#     score = r_type * (attributes found + options found + [price fits]) / (attributes + options + 1)
#
# The fuzzy match is kept on purpose, with its mistakes: `large` matches `x-large`, and `pack of 12` matches `pack of
# 2`, so a purchase with a wrong option can score 1.0. `strict` asks for the exact value instead.

MATCH_ABOVE = 85
"""Texts count as equal if their token set ratio, from 0 to 100, is above this."""
TITLE_MATCH, TITLE_POOR, POOR_TYPE, OTHER_TYPE = 0.2, 0.1, 0.1, 0.5
_COLOR_LIST = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream
    crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather
    indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
    multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
    rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise
    violet walnut wheat white wine yellow
"""
_LATIN_1 = dict.fromkeys(range(128, 256))
"""The only characters beyond ASCII that the original's matching, thefuzz, removes."""
COLORS = tuple(_COLOR_LIST.split())
"""The first of these colours that occurs in an option value is compared in place of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score and its parts, with the original's names."""

    total: float
    r_type: float
    query_match: bool
    category_match: bool
    title_score: float
    r_att: float
    r_option: float | None
    """Share of the wanted options that match. None if the goal names no option."""
    r_price: bool
    w_att: float
    w_option: float
    w_price: float

    def parts(self) -> dict[str, float | bool]:
        """Returns the parts without the total, for an outcome's info."""
        named: dict[str, float | bool] = {
            "r_type": self.r_type, "r_att": self.r_att, "w_att": self.w_att, "query_match": self.query_match,
            "category_match": self.category_match, "title_score": self.title_score, "r_price": self.r_price,
            "w_price": self.w_price,
        }  # fmt: skip
        return named if self.r_option is None else {**named, "r_option": self.r_option, "w_option": self.w_option}


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A purchase: the product, its price and the chosen options."""

    product: Product
    price: float
    """The price in dollars."""
    options: Mapping[str, str]
    """Chosen value by option name."""


def score(goal: ShoppingGoal, bought: Purchase, nouns: Tagger, *, strict: bool = False) -> Score:
    """Returns the score in [0, 1]; 1.0 is a success. `strict` counts an option only if its exact value was chosen."""
    of_type, query, category, title = _type(goal, bought.product, nouns)
    attributes = sum(_has_attribute(bought.product, each) for each in goal.attributes)
    find = _options_strictly if strict else _options
    options = find(goal.options, bought.options)
    fits = bought.price <= goal.price_upper
    parts = len(goal.attributes) + len(goal.options) + 1
    return Score(
        total=of_type * ((attributes + options + fits) / parts), r_type=of_type, query_match=query,
        category_match=category, title_score=title, r_att=attributes / len(goal.attributes),
        r_option=options / len(goal.options) if goal.options else None, r_price=fits,
        w_att=len(goal.attributes) / parts, w_option=len(goal.options) / parts, w_price=1 / parts,
    )  # fmt: skip


def _type(goal: ShoppingGoal, product: Product, nouns: Tagger) -> tuple[float, bool, bool, float]:
    """Returns r_type, whether queries are equal, whether at least two category names are shared, and the share of the
    nouns in the goal's title that the product's title has too.

    As in the original, the numerator counts each noun once, and the denominator counts repeats.
    """
    query = product.query == goal.query
    category = len(_names(product.product_category) & _names(goal.product_category)) > 1
    wanted = nouns(goal.title)
    title = len(set(wanted) & set(nouns(product.title))) / len(wanted) if wanted else TITLE_MATCH
    if title == 0:
        return 0.0, query, category, title
    if title < TITLE_POOR:
        return POOR_TYPE, query, category, title
    return (1.0 if query or category or title > TITLE_MATCH else OTHER_TYPE), query, category, title


def _names(path: str) -> set[str]:
    return {name.strip() for name in path.split("›")}


def _has_attribute(product: Product, wanted: str) -> bool:
    if any(_alike(each, wanted) for each in product.attributes):
        return True
    read = (product.title, " ".join(product.bullets), product.description)
    return any(wanted in text.lower() for text in read)


def _options(wanted: Mapping[str, str] | tuple[str, ...], chosen: Mapping[str, str]) -> int:
    """Returns how many wanted values match a chosen value, whatever the option's name.

    For a synthetic goal the pair (name, value) is compared. That works because the match looks for a subset of words.
    """
    pairs: Iterable[str | tuple[str, str]] = wanted.items() if isinstance(wanted, Mapping) else wanted
    values = [_color(value) for value in chosen.values()]
    return sum(any(_alike(value, each) for value in values) for each in map(_color, pairs))


def _options_strictly(wanted: Mapping[str, str] | tuple[str, ...], chosen: Mapping[str, str]) -> int:
    if isinstance(wanted, Mapping):
        return sum(chosen.get(name) == value for name, value in wanted.items())
    return sum(option_value(value) in chosen.values() for value in wanted)


def _color(value: str | tuple[str, str]) -> str | tuple[str, str]:
    """Returns the colour in an option value, else the value. In a pair (name, value), an element must be exactly a
    colour."""
    return next((color for color in COLORS if color in value), value)


def _alike(one: str | tuple[str, str], other: str | tuple[str, str]) -> bool:
    return similarity(one, other) > MATCH_ABOVE


def similarity(one: str | tuple[str, str], other: str | tuple[str, str]) -> int:
    """Returns the token set ratio, 0 to 100, as thefuzz computes it. A pair is compared as the text that Python
    prints."""
    first, second = (default_process(str(value).translate(_LATIN_1)) for value in (one, other))
    return round(token_set_ratio(first, second))


SEARCH_ACTION = "search[<your query>]"
"""The entry for a search in the list of admissible actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The immutable data that all sessions of a server share."""

    search: Callable[[str], Sequence[Product]]
    """Maps a query to ranked products, at most fifty."""
    by_asin: Callable[[str], Product]
    """Maps a lower-case ASIN to its product."""
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

    def _click(self, thing: str) -> Purchase | None:
        """Takes a click. Returns the purchase, or None if it was another click."""
        state = self._state
        if thing == pages.BUY.lower():
            return Purchase(product=state.opened(), price=self._price(state.opened()), options=state.options)
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
        """Shows page `number` of the results, and forgets the open product and the chosen options."""
        state = self._state
        state.page, state.number, state.product, state.options = "results", number, None, {}

    def _bought(self, bought: Purchase) -> Outcome:
        fuzzy, strict = (score(self._goal, bought, self._shop.nouns, strict=one) for one in (False, True))
        own = strict if self._shop.strict_options else fuzzy
        self._state.page, self._state.total = "done", own.total
        won = own.total == 1.0
        return Outcome(
            observation=pages.render(self._state, self._shop.observation, attributes=self._shop.show_attributes),
            admissible_actions=[], reward=float(won), done=True, won=won,
            info={"task_score": own.total, f"{RULE}original": fuzzy.total, f"{RULE}strict": strict.total,
                  **own.parts()})

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
