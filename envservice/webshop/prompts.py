"""The two WebShop prompts, with the parsers of their answers.

`full` has the fields, order and quoting of the papers' pipeline (verl-agent). `compact` states the page and the past
actions in few words, for models of less than a million parameters. Both are answered with
`<think>...</think><action>...</action>`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from envservice.base import Outcome, ParsedAction, Turn, recent
from envservice.text.response_format import read_lowered
from envservice.webshop import pages
from envservice.webshop.reader import Page, instruction_of, name_of, parse_request, pieces, read, sub_lines

LONGEST = 13_000
"""Most characters of a full prompt. A longer one is rendered again without its history."""
_TAIL = 20
"""If an answer lacks action tags, the environment receives this many of its last characters."""


def page_text(observation: str, instruction: str) -> str:
    """Returns the text of a page after its instruction, with each piece in quotes. A page without the instruction is
    returned as it is.

    Within one task, two pages have the same page text if and only if they have the same observation.
    """
    texts = pieces(observation)
    if instruction not in texts:
        return observation
    return pages.SEPARATOR.join(f"'{text}'" for text in texts[texts.index(instruction) + 1 :])


class WebshopFullTemplate:
    """One user message per turn: role, task, recent pages with actions, current page, admissible actions."""

    name = "full"
    chat = True

    def __init__(self, history: int = 2) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Renders the prompt. It has no history at the first turn, if `history` is 0, or if it would be too long."""
        task = instruction_of(first)
        shown = recent(turns, self.history)
        if shown:
            text = self._message(task, now, self._past(task, shown, len(turns)))
            if len(text) <= LONGEST:
                return text
        return self._message(task, now, "Your current observation is")

    def _message(self, task: str, now: Outcome, opening: str) -> str:
        actions = "\n".join(f"'{action}'," for action in now.admissible_actions)
        return (
            f"{_ROLE}\nYour task is to: {task}.\n{opening}: {page_text(now.observation, task)}.\n"
            f"Your admissible actions of the current situation are:\n[\n{actions}\n].\n\n{_INSTRUCTION}")

    def _past(self, task: str, shown: Sequence[Turn], taken: int) -> str:
        past = "\n".join(
            f"[Observation {step}: '{page_text(turn.observation, task)}', Action {step}: '{turn.action}']"
            for step, turn in enumerate(shown, start=taken - len(shown) + 1))
        return (
            f"Prior to this step, you have already taken {taken} step(s). Below are the most recent {len(shown)} "
            f"observations and the corresponding actions you took: {past}\n"
            f"You are now at step {taken + 1} and your current observation is")

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text, tail=_TAIL)


_ROLE = "You are an expert autonomous agent operating in the WebShop e‑commerce environment."
_INSTRUCTION = (
    "It is your turn to take one action for the current step.\n"
    "First reason step by step about the current situation, then think carefully which admissible action best advances "
    "the shopping goal. This reasoning MUST be enclosed within <think> </think> tags.\n"
    "Then choose one admissible action for the current step and present it within <action> </action> tags."
)


class WebshopCompactTemplate:
    """Raw text in lower case, in a few short lines: the request, the past actions, the page. For instance

        Task: find me cordless, dimmable table lamps; color: [red], size: [small]; under 40
        Done: search[cordless dimmable table lamps]; click[b417]; click[red]
        Opened: [b220] [b417]
        Item: 24 velmora nova cordless table lamp
        Options: color: [red], [navy]; size: [small], [large]
        Chosen: [red]
        Features: dimmable table lamp; foldable; usb charging

    Brackets hold what can be clicked, as a click names it, so that the model copies a single token.

    The prompt also remembers what the current page does not show: the options chosen since the product was opened, its
    features once they were read, and the products opened before. Prices are rounded up to dollars.

    Only the task has the form `color: [red]` with the wanted value first, so the text after `color: [` is always the
    value to copy, which is the first thing that a small model learns.
    """

    name = "compact"
    chat = False

    def __init__(self, history: int = 3) -> None:
        self.history = history

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        shown = recent(turns, self.history)
        done = "; ".join(turn.action if _worked(turn) else f"{turn.action} failed" for turn in shown)
        memory = ShoppingMemory(turns, now)
        lines = [
            f"Task: {_task(instruction_of(first))}", f"Done: {done or '-'}",
            f"Opened: {' '.join(map(_bracketed, memory.opened)) or '-'}", *_page(read(now), memory)]
        return "\n".join(lines) + "\n"

    def parse(self, text: str) -> ParsedAction:
        return read_lowered(text, tail=_TAIL)


_WORDS_OF_TITLE = 12
_BUTTONS = frozenset(name.lower() for name in (pages.BACK, pages.PREVIOUS, pages.BUY, *pages.SUB_PAGES))


class ShoppingMemory:
    """Facts from earlier pages and actions that matter on the present page."""

    def __init__(self, turns: Sequence[Turn], now: Outcome) -> None:
        self.opened: list[str] = []
        """Products opened before, in lower case, in order of opening."""
        self.chosen: list[str] = []
        """Option values chosen for the present product."""
        self.features: tuple[str, ...] | None = None
        """Features of the present product. None: not read yet."""
        action = ""
        for turn in turns:
            self._see(pieces(turn.observation), action)
            action = turn.action if _worked(turn) else ""
            self._act(name_of(pieces(turn.observation)), action.removeprefix("click[").removesuffix("]"))
        self._see(pieces(now.observation), action)

    def _see(self, texts: Sequence[str], action: str) -> None:
        name = name_of(texts)
        if name in ("index", "results"):
            self.chosen, self.features = [], None
        elif name == "sub" and action == f"click[{pages.FEATURES.lower()}]":
            self.features = sub_lines(texts)

    def _act(self, name: pages.Name, thing: str) -> None:
        if name == "results" and thing not in _BUTTONS and thing != pages.NEXT.lower() and not _SEARCH.match(thing):
            self.opened = [*(each for each in self.opened if each != thing), *([thing] if thing else [])]
        elif name == "item" and thing and thing not in _BUTTONS and not _SEARCH.match(thing):
            self.chosen = [*(each for each in self.chosen if each != thing), thing]


_SEARCH = re.compile(r"search\[.")


def _worked(turn: Turn) -> bool:
    """Returns whether an action had an effect. A search works on every page, though only one page lists it."""
    return turn.admissible or _SEARCH.match(turn.action) is not None


def _task(instruction: str) -> str:
    request = parse_request(instruction)
    options = ", ".join(f"{name}: {_bracketed(value)}" for name, value in request.options.items())
    limit = "" if request.limit is None else f"under {request.limit:g}"
    return "; ".join(part for part in (request.wish, options, limit) if part).lower()


def _page(page: Page, memory: ShoppingMemory) -> list[str]:
    if page.name == "results":
        rows = [f"{_bracketed(each.asin)} {_dollars(each.price)} {_title(each.title)}" for each in page.results]
        return [f"Results: page {page.number} of {page.total}", *rows]
    if page.name == "sub":
        return [f"Text: {'; '.join(page.lines).lower() or '-'}"]
    if page.name != "item":
        return [f"Page: {page.name}"]
    options = "; ".join(f"{', '.join(map(_bracketed, values))} ({name})" for name, values in page.options.items())
    features = "-" if memory.features is None else "; ".join(memory.features).lower() or "none"
    return [
        f"Item: {_dollars(page.price)} {_title(page.title)}", f"Options: {options or '-'}",
        f"Chosen: {', '.join(map(_bracketed, _last_of_each(page, memory.chosen))) or '-'}", f"Features: {features}"]


def _last_of_each(page: Page, chosen: Sequence[str]) -> list[str]:
    """Returns the last chosen value of each option, which is the one that counts."""
    last = {next((name for name in reversed(list(page.options)) if value in page.options[name]), value): value
            for value in chosen}
    return [value for value in chosen if value in last.values()]


def _bracketed(name: str) -> str:
    return f"[{name}]"


def _title(title: str) -> str:
    return " ".join(title.lower().split()[:_WORDS_OF_TITLE])


def _dollars(tag: str) -> str:
    """Returns `24 to 31` for `$23.49 to $30.5`. Prices are rounded up: one that is shown within a limit is
    within it."""
    return " to ".join(str(math.ceil(float(price.lstrip("$")))) for price in tag.split(" to "))

