"""Estimators by name. A new one is a file beside gagpo.py and a line here."""

from __future__ import annotations

from learner.credit.gagpo import Gagpo
from learner.credit.types import Estimator
from services.errors import UserError

ESTIMATORS: dict[str, Estimator] = {
    "gagpo": Gagpo(),
}


def estimator(name: str) -> Estimator:
    """The estimator of that name. Raises UserError, listing those that exist."""
    found = ESTIMATORS.get(name)
    if found is None:
        raise UserError(f"there is no credit estimator {name!r}", f"use one of: {', '.join(ESTIMATORS)}")
    return found
