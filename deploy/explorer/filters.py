"""Template filters: the formats of numbers, tokens and colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from services.amounts import number_of

SHADES = 5
"""Shades of each colour of the diverging scale. The sequential scale of values has 8."""
EMPTY = "(empty)"
"""Stands in place of an answer, action or observation without a visible character."""
SURPRISE = (0.1, 0.5, 1.5, 3.0)
"""Bounds of -logprob between the five shades of a token."""


def number(value: float | None, digits: int = 3) -> str:
    """Returns a number with a true minus sign, or a dash if it is unknown."""
    from learner.credit.explanation import plain

    return "–" if value is None else plain(value, digits)


def decimals(value: float, digits: int) -> str:
    """Returns a number with exactly `digits` decimals, as a column of logprobs needs."""
    from learner.credit.explanation import decimals as with_decimals

    return with_decimals(value, digits)


def signed(value: float | None, digits: int = 3) -> str:
    """Returns a number as `number` does, with + if it is above zero."""
    from learner.credit.explanation import signed as with_sign

    return "–" if value is None else with_sign(value, digits)


def percent(value: float | None) -> str:
    """Returns a share as a percentage without decimals."""
    return "–" if value is None else f"{value:.0%}"


def interval(low: float, high: float) -> str:
    """Returns the ends of an interval as percentages without decimals: `[68%, 78%]`."""
    return f"[{percent(low)}, {percent(high)}]"


def shade(value: float | None, largest: float) -> str:
    """Returns the CSS class of the diverging scale: n5 ... n1, z, p1 ... p5, or "" if the value is unknown."""
    if value is None:
        return ""
    strength = min(abs(value) / largest, 1.0)
    if strength < 0.02:
        return "z"
    return ("p" if value > 0 else "n") + str(min(SHADES, 1 + int(strength * SHADES)))


def surprise(logprob: float) -> str:
    """Returns the CSS class of a token: t0 if it was nearly certain, t4 if it was very improbable."""
    return f"t{sum(-logprob > bound for bound in SURPRISE)}"


def segment(text: str) -> str:
    """Returns a text as part of a URL. Slashes stay, because group ids have them."""
    return quote(text, safe="/")


def visible(text: str) -> str:
    """Returns a text, or EMPTY if it has no visible character: nobody could click a link without text."""
    return text if text.strip() else EMPTY


def one_line(text: str, length: int = 140) -> str:
    """Returns a visible text on one line, cut with an ellipsis if it is too long."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= length else line[: length - 1] + "…"


def short(task: str) -> str:
    """Returns a task id without environment and split, which the page shows elsewhere."""
    parts = task.split("/", 2)
    return parts[2] if len(parts) == 3 else task


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number, "decimals": decimals, "signed": signed, "percent": percent, "interval": interval, "shade": shade,
    "surprise": surprise, "segment": segment, "visible": visible, "one_line": one_line, "short": short,
    "number_of": number_of}
