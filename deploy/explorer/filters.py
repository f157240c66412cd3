"""How numbers, tokens and colours are written: the filters of the templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

SHADES = 5
"""Of each colour of the diverging scale; 8 of the sequential one of values."""
SURPRISE = (0.1, 0.5, 1.5, 3.0)
"""Bounds of -logprob between the five shades of a token."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with a true minus sign; a dash for one that is not known."""
    from learner.credit.explanation import plain

    return "–" if value is None else plain(value, digits)


def signed(value: float | None, digits: int = 3) -> str:
    """The same, with + before a number above zero."""
    from learner.credit.explanation import signed as with_sign

    return "–" if value is None else with_sign(value, digits)


def percent(value: float | None) -> str:
    """Whole percents."""
    return "–" if value is None else f"{value:.0%}"


def shade(value: float | None, largest: float) -> str:
    """Class of the diverging scale: n5 ... n1, z, p1 ... p5; empty where nothing is known."""
    if value is None:
        return ""
    strength = min(abs(value) / largest, 1.0)
    if strength < 0.02:
        return "z"
    return ("p" if value > 0 else "n") + str(min(SHADES, 1 + int(strength * SHADES)))


def surprise(logprob: float) -> str:
    """Class of a token: t0 where it was nearly certain, t4 where it was all but ruled out."""
    return f"t{sum(-logprob > bound for bound in SURPRISE)}"


def segment(text: str) -> str:
    """A part of an address; slashes stay, since group ids have them."""
    return quote(text, safe="/")


def one_line(text: str, length: int = 140) -> str:
    """White space folded; cut with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def short(task: str) -> str:
    """A task's id without its environment and split, which the page names already."""
    parts = task.split("/", 2)
    return parts[2] if len(parts) == 3 else task


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number, "signed": signed, "percent": percent, "shade": shade, "surprise": surprise, "segment": segment,
    "one_line": one_line, "short": short}
