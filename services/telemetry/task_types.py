"""Results by task type: columns of metrics.jsonl such as `type/pick/success`, and the weights that follow from them.

Only runs that sample tasks by type have these columns. Runs of several environments have the same by environment, such
as `env/search-gen/success`. Light: imports the standard library alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

PREFIX, ENV_PREFIX = "type/", "env/"
GROUPS, SUCCESS, CONTRAST = "/groups", "/success", "/contrast"
LAST_STEPS = 10
"""Number of learner steps whose groups count as recent."""
FLOOR = 0.1
"""Weight of a type without any contrast. No type's share falls below this part of its share of the tasks."""

Rows = Sequence[Mapping[str, Any]]
"""Rows of metrics.jsonl, one per learner step, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeResult:
    """The results of some groups of one task type."""

    groups: int
    success: float
    """Mean over groups of the share of won episodes."""
    contrast: float
    """Mean contrast of a group."""


def contrast(success: float) -> float:
    """Returns 4 p (1 - p) of a group in which the share p of the episodes was won: 1 at half, 0 at none and at all.

    It is the variance of the group's outcomes, as a share of the largest possible one.
    """
    return 4 * success * (1 - success)


def type_columns(groups: Iterable[tuple[str, float]], prefix: str = PREFIX) -> dict[str, float]:
    """Returns the columns of one learner step. `groups`: task type and share of won episodes of each group. With
    ENV_PREFIX, its environment in place of the type."""
    by_type = defaultdict[str, list[float]](list)
    for task_type, success in groups:
        by_type[task_type].append(success)
    columns: dict[str, float] = {}
    for task_type, successes in sorted(by_type.items()):
        columns |= {f"{prefix}{task_type}{GROUPS}": len(successes),
                    f"{prefix}{task_type}{SUCCESS}": fmean(successes),
                    f"{prefix}{task_type}{CONTRAST}": fmean(map(contrast, successes))}
    return columns


def type_results(rows: Iterable[Mapping[str, Any]], prefix: str = PREFIX) -> dict[str, TypeResult]:
    """Returns the results of each task type over all groups of these rows. Each group counts alike. `prefix`: as in
    type_columns."""
    groups, successes, contrasts = (defaultdict[str, float](float) for _ in range(3))
    for row in rows:
        for key in row:
            if not (key.startswith(prefix) and key.endswith(GROUPS)):
                continue
            task_type = key.removeprefix(prefix).removesuffix(GROUPS)
            number, *means = (row.get(f"{prefix}{task_type}{end}") for end in (GROUPS, SUCCESS, CONTRAST))
            if number and None not in means:
                groups[task_type] += number
                successes[task_type] += number * means[0]
                contrasts[task_type] += number * means[1]
    return {name: TypeResult(groups=int(number), success=successes[name] / number, contrast=contrasts[name] / number)
            for name, number in sorted(groups.items())}


def recent_results(rows: Rows, until: int, prefix: str = PREFIX) -> dict[str, TypeResult]:
    """Returns the results by type of the LAST_STEPS learner steps up to `until`. `prefix`: as in type_columns."""
    return type_results((row for row in rows if until - LAST_STEPS < row["step"] <= until), prefix)


def type_weight(result: TypeResult | None) -> float:
    """Returns the weight of a task of a type, from FLOOR to 1. None: the type has no recent group, and is tried."""
    return 1.0 if result is None else FLOOR + (1 - FLOOR) * result.contrast
