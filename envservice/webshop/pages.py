"""Renders pages as text from the state of a session: the text of the original's HTML without its tags.

Each page is a list of nodes. `text` joins their texts by ` [SEP] ` and shows no difference between a button and a
word; `text_rich` gives each a line and marks buttons, options and links, and those already clicked. A node without
text is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from envservice.webshop.products import Product

SEPARATOR = " [SEP] "
PAGE_LENGTH = 10
SEARCH, BACK, PREVIOUS, NEXT, BUY = "Search", "Back to Search", "< Prev", "Next >", "Buy Now"
DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES = "Description", "Features", "Reviews", "Attributes"
SUB_PAGES = {name.lower(): name for name in (DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES)}
RATING = "N.A."
"""The rating of every product, because reviews are not loaded."""

Kind = Literal["text", "button", "option", "link"]
Node = tuple[Kind, str]
Format = Literal["text", "text_rich"]
Name = Literal["index", "results", "item", "sub", "done"]


@dataclass(slots=True, kw_only=True)
class ShopState:
    """The state of a session. `hits` are the results of `keywords`, searched once for all their pages."""

    instruction: str
    page: Name = "index"
    keywords: list[str] = field(default_factory=list[str])
    hits: Sequence[Product] = ()
    number: int = 1
    """Number of the results page, from 1."""
    product: Product | None = None
    options: dict[str, str] = field(default_factory=dict[str, str])
    """Chosen values by option name, in order of the first choice."""
    sub: str = ""
    """Title of the current or last sub page."""
    visited: set[str] = field(default_factory=set[str])
    """ASINs opened since the last return to the search page."""
    total: float = 0.0
    """The score, on the last page."""

    def shown(self) -> Sequence[Product]:
        """Returns the products on the current results page."""
        return self.hits[(self.number - 1) * PAGE_LENGTH : self.number * PAGE_LENGTH]

    def opened(self) -> Product:
        """Returns the product of an item page or of its sub pages."""
        assert self.product is not None, f"no product is open on the page {self.page}"
        return self.product


def clickables(state: ShopState, *, attributes: bool) -> list[str]:
    """Returns the things that can be clicked, in lower case, without repeats: all buttons, then all links or
    options."""
    if state.page == "index":
        return [SEARCH.lower()]
    if state.page == "results":
        buttons = [BACK, *([PREVIOUS] if state.number > 1 else []), NEXT]
        links = [product.asin for product in state.shown()]
        return list(dict.fromkeys(name.lower() for name in (*buttons, *links)))
    if state.page == "item":
        subs = [DESCRIPTION, FEATURES, REVIEWS, *([ATTRIBUTES] if attributes else [])]
        buttons = [name.lower() for name in (BACK, PREVIOUS, *subs, BUY)]
        return list(dict.fromkeys((*buttons, *_values(state.opened()))))
    return [BACK.lower(), PREVIOUS.lower()] if state.page == "sub" else []


def render(state: ShopState, form: Format, *, attributes: bool) -> str:
    """Renders the page that the agent reads. `attributes`: whether item pages link to the page of attributes."""
    nodes = [node for node in _PAGES[state.page](state, attributes) if node[1].strip()]
    return SEPARATOR.join(text.strip() for _, text in nodes) if form == "text" else _rich(state, nodes)


def _values(product: Product) -> Iterator[str]:
    for values in product.options.values():
        yield from values


def _text(text: str) -> Node:
    return "text", text


def _instruction(state: ShopState) -> list[Node]:
    return [("text", "Instruction:"), ("text", state.instruction)]


def _index(state: ShopState, _: bool) -> list[Node]:
    return [_text("WebShop"), *_instruction(state), ("button", SEARCH)]


def _results(state: ShopState, _: bool) -> list[Node]:
    nodes: list[Node] = [*_instruction(state), ("button", BACK)]
    nodes.append(("text", f"Page {state.number} (Total results: {len(state.hits)})"))
    if state.number > 1:
        nodes.append(("button", PREVIOUS))
    nodes.append(("button", NEXT))
    for product in state.shown():
        nodes += [("link", product.asin), _text(product.title), _text(product.price_tag)]
    return nodes


def _item(state: ShopState, attributes: bool) -> list[Node]:
    product = state.opened()
    nodes: list[Node] = [*_instruction(state), ("button", BACK), ("button", PREVIOUS)]
    for name, values in product.options.items():
        nodes.append(("text", name))
        nodes.extend(("option", value) for value in values)
    nodes += [_text(product.title), _text(f"Price: {product.price_tag}"), _text(f"Rating: {RATING}")]
    subs = (DESCRIPTION, FEATURES, REVIEWS, *((ATTRIBUTES,) if attributes else ()))
    nodes.extend(("button", name) for name in (*subs, BUY))
    return nodes


def _sub(state: ShopState, _: bool) -> list[Node]:
    product = state.opened()
    contents: dict[str, Sequence[str]] = {
        DESCRIPTION: [product.description],
        FEATURES: product.bullets,
        REVIEWS: [],
        ATTRIBUTES: [*product.attributes, product.category, product.query, product.product_category],
    }
    nodes: list[Node] = [*_instruction(state), ("button", BACK), ("button", PREVIOUS)]
    nodes.extend(("text", each) for each in contents[state.sub])
    return nodes


def _done(state: ShopState, _: bool) -> list[Node]:
    """Returns the last page. It does not name the goal: the original's page leaves these fields empty."""
    texts = [
        "Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)", "Purchased",
        "asin", state.opened().asin, "options", json.dumps(state.options), "attrs", "None", "category", "None", "query",
        "None", "product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text",
        "category", "product category", "query", "Goal", "None", "Reward", "Your score (min 0.0, max 1.0)",
        str(state.total), "Reward Details", "None",
    ]  # fmt: skip
    return [("text", text) for text in texts]


_PAGES: Mapping[Name, Callable[[ShopState, bool], list[Node]]] = {
    "index": _index, "results": _results, "item": _item, "sub": _sub, "done": _done}


def _rich(state: ShopState, nodes: Sequence[Node]) -> str:
    """Renders one line per node. Clicked options are repeated above the page, in reverse page order."""
    address = f"{'+'.join(state.keywords)}/{state.number}/{json.dumps(state.options)}"
    page = ""
    for kind, text in nodes:
        if kind == "option" and f'"{text}"' in address:
            page = f"You have clicked {text}.\n{page}  [clicked button] {text} [clicked button_]\n"
        elif kind == "link" and text in state.visited:
            page += f"\n[clicked button] {text} [clicked button_]\n"
        else:
            page += _RICH[kind].format(text)
    return page


_RICH: Mapping[Kind, str] = {
    "text": "{}\n", "button": "[button] {} [button_]\n", "option": "  [button] {} [button_]\n",
    "link": "\n[button] {} [button_]\n"}
