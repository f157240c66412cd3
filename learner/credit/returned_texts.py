"""Asks an estimator what its numbers mean and how they came about. One of the user's own may raise or return anything,
which is told in one line.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, cast

from learner.credit.explanation import CalculationLine, Explanation
from learner.credit.registry import estimator
from learner.credit.types import Credit, Group
from services.amounts import number_of
from services.config.credit import CreditSection
from services.errors import UserError
from services.process.own_code import as_user_error


def legend_of(options: CreditSection) -> dict[str, str]:
    """Returns the meaning of each number that the estimator explains, by its symbol.

    Raises UserError if the estimator fails, or returns anything else.
    """
    name = options.estimator
    with as_user_error(f"legend of the estimator {name} failed", f"fix {name.partition(':')[0]}"):
        legend: Any = estimator(name).legend(options)
    if not isinstance(legend, dict) or not all(
            isinstance(text, str) for pair in cast("dict[object, object]", legend).items() for text in pair):
        raise UserError(f"legend of the estimator {name} returned {legend!r:.60}",
                        "return a dict of texts, symbol -> meaning")
    return cast("dict[str, str]", legend)


def explanation_of(group: Group, credit: Credit, options: CreditSection, episode: int) -> Explanation:
    """Returns the estimator's lines for each step of one episode, from the credit of its group as an archive holds it.

    Raises UserError if the estimator fails, or returns anything else.
    """
    name, steps = options.estimator, len(group[episode])
    with as_user_error(f"explain of the estimator {name} failed", f"fix {name.partition(':')[0]}"):
        found: Any = estimator(name).explain(group, credit, options, episode)
    if not _are_lines(found, steps):
        raise UserError(f"explain of the estimator {name} returned {found!r:.60} for an episode of "
                        f"{number_of(steps, 'step')}", "return a list of CalculationLine for each step")
    return found


def _are_lines(found: Any, steps: int) -> bool:
    """Whether these are lists of lines, each with a text and a number, one list for each step."""
    rows: list[Any] = cast("list[Any]", found) if isinstance(found, list) else []
    if len(rows) != steps or not all(isinstance(row, list) for row in rows):
        return False
    lines = list(chain.from_iterable(rows))
    if not all(isinstance(line, CalculationLine) for line in lines):
        return False
    fields: list[tuple[object, object]] = [(line.formula, line.result) for line in lines]
    return all(isinstance(formula, str) and isinstance(result, int | float) for formula, result in fields)
