"""Parses pages from their text, as a shopper reads them, for prompts and for the scripted player.

It works on both observation forms and on any products, and uses nothing that the text does not say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from envservice.base import Outcome
from envservice.webshop import pages

_MARKED = re.compile(r"\s*\[(?:clicked )?button\] (.*) \[(?:clicked )?button_\]")
_COUNT = re.compile(r"Page (\d+) \(Total results: (\d+)\)")
_LIMIT = re.compile(r"(.*), and price lower than ([\d.]+) dollars", re.DOTALL)
_PRICE = "Price: "
_INSTRUCTION = "Instruction:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProduct:
    """One line of a results page."""

    asin: str
    """The product's id in lower case, as clicks name it."""
    title: str
    price: str
    """The price tag: `$12.99` or `$10.0 to $20.0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a page. Fields of other kinds of page are empty."""

    name: pages.Name
    number: int = 1
    total: int = 0
    """Number of results."""
    results: tuple[ListedProduct, ...] = ()
    title: str = ""
    price: str = ""
    options: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    lines: tuple[str, ...] = ()
    """Lines of a sub page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parts of an instruction."""

    wish: str
    """The instruction without options and price limit."""
    options: dict[str, str]
    limit: float | None
    """The price limit in dollars. None: no limit."""


def pieces(observation: str) -> list[str]:
    """Returns the texts of a page in order, without the marks of buttons."""
    if pages.SEPARATOR in observation:
        return observation.split(pages.SEPARATOR)
    lines = (line for line in observation.split("\n") if line and not line.startswith("You have clicked "))
    return [match[1] if (match := _MARKED.fullmatch(line)) else line for line in lines]


def instruction_of(now: Outcome) -> str:
    """Returns the instruction, which is on every page except the last. There it returns ""."""
    texts = pieces(now.observation)
    return texts[texts.index(_INSTRUCTION) + 1] if _INSTRUCTION in texts[:-1] else ""


def parse_request(instruction: str) -> Request:
    """Parses an instruction. Options are found in the synthetic form only: `... with color: red, and size: small`."""
    limit = None
    if match := _LIMIT.fullmatch(instruction):
        instruction, limit = match[1], float(match[2])
    options: dict[str, str] = {}
    if (start := _options_start(instruction)) is not None:
        named = instruction[start + len(" with ") :]
        instruction = instruction[:start]
        options = {name: value for name, _, value in (pair.partition(": ") for pair in named.split(", and "))}
    return Request(wish=instruction, options=options, limit=limit)


def _options_start(text: str) -> int | None:
    """Returns the index of ` with name: value`: the last ` with ` before the first colon."""
    colon = text.find(": ")
    start = text.rfind(" with ", 0, colon) if colon > 0 else -1
    return start if start >= 0 else None


def clicks(now: Outcome) -> list[str]:
    """Returns the things that can be clicked."""
    return [each[len("click[") : -1] for each in now.admissible_actions if each.startswith("click[")]


def name_of(texts: Sequence[str]) -> pages.Name:
    """Returns the kind of page that has these pieces."""
    if texts[0] == "WebShop":
        return "index"
    if texts[0] != _INSTRUCTION:
        return "done"
    if texts[-1] == pages.BUY:
        return "item"
    return "results" if any(_COUNT.fullmatch(text) for text in texts) else "sub"


def read(now: Outcome) -> Page:
    """Parses the page of an outcome."""
    texts = pieces(now.observation)
    name = name_of(texts)
    if name == "item":
        return _item(texts, clicks(now))
    if name == "results":
        return _results(texts)
    return Page(name=name, lines=sub_lines(texts)) if name == "sub" else Page(name=name)


def sub_lines(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the texts of a sub page below its buttons."""
    return tuple(texts[texts.index(pages.PREVIOUS) + 1 :])


def _results(texts: Sequence[str]) -> Page:
    place = next(n for n, text in enumerate(texts) if _COUNT.fullmatch(text))
    match = _COUNT.fullmatch(texts[place])
    assert match is not None
    rows = texts[texts.index(pages.NEXT, place) + 1 :]
    results = tuple(
        ListedProduct(asin=asin.lower(), title=title, price=price)
        for asin, title, price in zip(rows[::3], rows[1::3], rows[2::3], strict=False))
    return Page(name="results", number=int(match[1]), total=int(match[2]), results=results)


def _item(texts: Sequence[str], offered: Sequence[str]) -> Page:
    start = texts.index(pages.PREVIOUS) + 1
    end = next(n for n in range(len(texts) - 1, start, -1) if texts[n].startswith(_PRICE))
    values = set(offered[offered.index(pages.BUY.lower()) + 1 :])
    options: dict[str, list[str]] = {}
    for text in texts[start : end - 1]:
        if text in values and options:
            options[next(reversed(options))].append(text)
        else:
            options[text] = []
    return Page(name="item", title=texts[end - 1], price=texts[end].removeprefix(_PRICE), options=options)
