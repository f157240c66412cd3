"""Checks what an estimator returned. One of the user's own may return anything, and the loss, the archive and
`gagpo credit` read all fields of a Credit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from math import isfinite
from typing import Any, cast

from learner.credit.types import Credit
from services.amounts import number_of
from services.errors import UserError

_OF_STEPS = ("advantages", "raw_advantages", "returns", "states", "deltas", "baselines", "tokens")
"""The fields of a Credit with one value for each step."""
_MAY_BE_NONE = frozenset({"deltas", "baselines", "tokens"})


def check_credit(credits: object, groups: Sequence[Sequence[Sequence[object]]], name: str) -> None:
    """Raises UserError unless the estimator of that name returned one Credit for each of `groups`,
    [group][episode][step], with a finite advantage for each step, and other fields of the same lengths."""
    given = cast("list[object]", credits) if isinstance(credits, list | tuple) else None
    if given is None or not all(isinstance(credit, Credit) for credit in given):
        raise UserError(f"the estimator {name} returned something that is no Credit",
                        "return a learner.credit.types.Credit from `group`, and one for each group from `batch`")
    if len(given) != len(groups):
        raise UserError(f"the estimator {name} returned {number_of(len(given), 'credit')} for "
                        f"{number_of(len(groups), 'group')}",
                        "return one for each group from `batch`")
    for credit, group in zip(cast("Sequence[Credit]", given), groups, strict=True):
        for field in _OF_STEPS:
            rows = getattr(credit, field)
            if rows is not None or field not in _MAY_BE_NONE:
                _check_rows(rows, [len(episode) for episode in group], field, name)
        valued = credit.values
        if valued is not None and (missing := set(chain.from_iterable(credit.states)) - valued.keys()):
            raise UserError(f"the estimator {name} returned values without one for the state {min(missing)!r:.60}",
                            "give each key in `states` its value and its number of occurrences, or set values=None")
        if valued is not None and not _are_values(valued.values()):
            state, pair = next(item for item in valued.items() if not _are_values([item[1]]))
            raise UserError(f"the estimator {name} returned {pair!r:.40} as the value of the state {state!r:.60}",
                            "give (value, occurrences), a finite number and a whole one of Python's own")


def _are_values(pairs: Collection[Any]) -> bool:
    """Whether all are tuples of a finite number and a whole one. Of a learner step's thousands, none is looked at by
    itself."""
    if not all(issubclass(kind, tuple) for kind in set(map(type, pairs))) or set(map(len, pairs)) - {2}:
        return False
    numbers = list(chain.from_iterable(pairs))
    values, counts = numbers[::2], numbers[1::2]
    return (all(issubclass(kind, int | float) for kind in set(map(type, values)))
            and all(issubclass(kind, int) for kind in set(map(type, counts))) and all(map(isfinite, values)))


def _check_rows(rows: Any, lengths: Sequence[int], field: str, name: str) -> None:
    """Raises UserError if `rows` are not lists of these lengths, of texts for `states` and else of finite numbers."""
    told = field.replace("_", " ")
    outer: list[Any] = [rows, *(cast("list[Any]", rows) if isinstance(rows, list) else ())]
    if wrong := [type(each).__name__ for each in outer if not isinstance(each, list)]:
        raise UserError(f"the estimator {name} returned {told} with {wrong[0]} in place of a list",
                        "return a list of lists, [episode][step]; an array has tolist()")
    nested = cast("list[list[Any]]", rows)
    if [len(row) for row in nested] != lengths:
        raise UserError(f"the estimator {name} returned another number of {told} than there are steps",
                        f"return one {'text' if field == 'states' else 'number'} for each step, [episode][step]")
    flat = list(chain.from_iterable(nested))
    wanted = str if field == "states" else int | float
    # A learner step has ten thousands of values: one by one they are looked at only to name the wrong one.
    if not all(issubclass(kind, wanted) for kind in set(map(type, flat))):
        value = next(value for value in flat if not isinstance(value, wanted))
        raise UserError(f"the estimator {name} returned {value!r:.40} among {told}",
                        "return texts" if field == "states" else "return numbers of Python; an array has tolist()")
    if field != "states" and not isfinite(sum(flat)) and (wild := [x for x in flat if not isfinite(x)]):
        raise UserError(f"the estimator {name} returned {wild[0]} among {told}, which is no finite number",
                        "look for a division by zero in it")
