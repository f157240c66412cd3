"""Checks what an estimator returns, because one of the user's own may raise or return anything.

The loss, the archive and `gagpo credit` read all fields of a Credit. Before a run starts, an own estimator is tried on
a made-up learner step. Otherwise its mistakes would show only after the cold start, at the first learner step, and
those in its explanations only in `gagpo explore`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite, nan
from typing import Any, cast

from learner.credit.estimator import Estimator
from learner.credit.explanation import CalculationLine, Explanation
from learner.credit.registry import estimator, options_of
from learner.credit.types import Credit, CreditStep, Group
from services.amounts import number_of
from services.config.sections import CreditSection
from services.errors import UserError
from services.process.own_code import as_user_error

_OF_STEPS = ("advantages", "raw_advantages", "returns", "states", "deltas", "baselines", "tokens")
"""The fields of a Credit with one value for each step."""
_MAY_BE_NONE = frozenset({"deltas", "baselines", "tokens"})
_LENGTHS = (2, 3, 1)
"""Steps of the episodes of a made-up group, in turn."""


def check_credit(credits: object, groups: Sequence[Sequence[Sequence[object]]], name: str) -> None:
    """Raises UserError unless the estimator of that name returned one Credit for each of `groups`,
    [group][episode][step], with a finite advantage for each step and its other fields in the same form."""
    given = cast("list[object]", credits) if isinstance(credits, list | tuple) else None
    if given is None or not all(isinstance(credit, Credit) for credit in given):
        raise UserError(f"the estimator {name} returned something that is no Credit",
                        "return a gagpo.estimators.Credit from `group`, and one for each group from `batch`")
    if len(given) != len(groups):
        raise UserError(f"the estimator {name} returned {number_of(len(given), 'credit')} for "
                        f"{number_of(len(groups), 'group')}",
                        "return one for each group from `batch`")
    for credit, group in zip(cast("Sequence[Credit]", given), groups, strict=True):
        for field in _OF_STEPS:
            rows = getattr(credit, field)
            if rows is not None or field not in _MAY_BE_NONE:
                _check_rows(rows, [len(episode) for episode in group], field, name)
        _check_values(credit, name)


def _check_values(credit: Credit, name: str) -> None:
    """Raises UserError unless the values are None, or a value and a count for each state of the credit."""
    valued: Any = credit.values
    if valued is None:
        return
    if not isinstance(valued, dict):
        raise UserError(f"the estimator {name} returned values of type {type(valued).__name__}, not a dict",
                        "return a dict, state -> (value, occurrences), or set values=None")
    pairs = cast("dict[str, Any]", valued)
    if missing := set(chain.from_iterable(credit.states)) - pairs.keys():
        raise UserError(f"the estimator {name} returned values without one for the state {min(missing)!r:.60}",
                        "give each key in `states` its value and its number of occurrences, or set values=None")
    if not _are_values(pairs.values()):
        state, pair = next(item for item in pairs.items() if not _are_values([item[1]]))
        raise UserError(f"the estimator {name} returned {pair!r:.40} as the value of the state {state!r:.60}",
                        "give (value, occurrences), a finite float and an int of Python's own")


def _are_values(pairs: Collection[Any]) -> bool:
    """Whether all are tuples of a finite number and an integer. Checks types by sets, since a step has thousands."""
    if not all(issubclass(kind, tuple) for kind in set(map(type, pairs))) or set(map(len, pairs)) - {2}:
        return False
    numbers = list(chain.from_iterable(pairs))
    values, counts = numbers[::2], numbers[1::2]
    return (all(issubclass(kind, int | float) for kind in set(map(type, values)))
            and all(issubclass(kind, int) for kind in set(map(type, counts))) and all(map(isfinite, values)))


def _check_rows(rows: Any, lengths: Sequence[int], field: str, name: str) -> None:
    """Raises UserError if `rows` are not lists of these lengths, of texts for `states` and else of finite numbers."""
    label = field.replace("_", " ")
    outer: list[Any] = [rows, *(cast("list[Any]", rows) if isinstance(rows, list) else ())]
    if wrong := [type(each).__name__ for each in outer if not isinstance(each, list)]:
        raise UserError(f"the estimator {name} returned {label} with {wrong[0]} in place of a list",
                        "return a list of lists, [episode][step]; an array has tolist()")
    nested = cast("list[list[Any]]", rows)
    if [len(row) for row in nested] != lengths:
        raise UserError(f"the estimator {name} returned another number of {label} than there are steps",
                        f"return one {'text' if field == 'states' else 'number'} for each step, [episode][step]")
    flat = list(chain.from_iterable(nested))
    wanted = str if field == "states" else int | float
    # A learner step has tens of thousands of values. They are checked one by one only to name the wrong one.
    if not all(issubclass(kind, wanted) for kind in set(map(type, flat))):
        value = next(value for value in flat if not isinstance(value, wanted))
        raise UserError(f"the estimator {name} returned {value!r:.40} among {label}",
                        "return texts" if field == "states" else "return numbers of Python; an array has tolist()")
    if field != "states" and not isfinite(sum(flat)) and (wild := [x for x in flat if not isfinite(x)]):
        raise UserError(f"the estimator {name} returned {wild[0]} among {label}, which is no finite number",
                        "look for a division by zero in it")


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
        lines: Any = estimator(name).explain(group, credit, options, episode)
    if not _are_lines(lines, steps):
        raise UserError(f"explain of the estimator {name} returned {lines!r:.60} for an episode of "
                        f"{number_of(steps, 'step')}", "return a list of CalculationLine for each step")
    return lines


def _are_lines(value: Any, steps: int) -> bool:
    """Whether `value` is a list for each step, of lines with a text and a number each."""
    rows: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
    if len(rows) != steps or not all(isinstance(row, list) for row in rows):
        return False
    lines = list(chain.from_iterable(rows))
    if not all(isinstance(line, CalculationLine) for line in lines):
        return False
    fields: list[tuple[object, object]] = [(line.formula, line.result) for line in lines]
    return all(isinstance(formula, str) and isinstance(result, int | float) for formula, result in fields)


def try_estimator(section: CreditSection, size: int) -> None:
    """Raises UserError if the estimator fails on made-up groups of `size` episodes, returns malformed credit, returns
    different credit each time, or fails to explain it.

    One group has one win, one has none, and one has wins only.
    """
    name = section.estimator
    chosen, options = estimator(name), options_of(section)
    credits = _credits(chosen, _groups(size), options)
    # A run creates the estimator anew at each learner step, and repeats a step after a crash.
    if any(_credits(again, _groups(size), options) != credits for again in (chosen, estimator(name))):
        raise UserError(f"the estimator {name} returned other numbers for the same groups",
                        "keep nothing between calls, and seed what is random")
    legend_of(options)
    for group, credit in zip(_groups(size), credits, strict=True):
        for episode in range(size):
            explanation_of(group, _archived(credit), options, episode)


def _groups(size: int) -> list[list[list[CreditStep]]]:
    """Returns the made-up groups as new lists, as a run has them for each call."""
    return [_group(size, wins) for wins in (1, 0, size)]


def _credits(chosen: Estimator, groups: Sequence[Group], options: CreditSection) -> list[Credit]:
    """Returns one credit for each group. Raises UserError if the estimator fails or returns anything else."""
    name, lengths = options.estimator, [[range(len(episode)) for episode in group] for group in groups]
    with as_user_error(f"the estimator {name} failed on a made-up group", f"fix {name.partition(':')[0]}"):
        credits = chosen.batch([chosen.group(group, options) for group in groups], options)
    check_credit(credits, lengths, name)
    return credits


def _archived(credit: Credit) -> Credit:
    """Returns the credit as the explorer reads it from an archive: values only by step, and NaN for absent numbers."""
    absent = [[nan] * len(row) for row in credit.states]
    values = credit.values and [[credit.values[state][0] for state in row] for row in credit.states]
    return replace(credit, values=None, baselines=credit.baselines or values or absent, deltas=credit.deltas or absent,
                   tokens=None)


def _group(size: int, wins: int) -> list[list[CreditStep]]:
    """Returns `size` episodes that all begin in one state. The first `wins` of them earn 1 at their last step."""
    return [[CreditStep(state=f"state {t}", reward=float(k < wins and t == length - 1), tokens=1, action="go",
                        invalid=k == size - 1)
             for t in range(length)] for k, length in zip(range(size), _LENGTHS * size, strict=False)]
