"""Arms: the configurations that a report or an experiment compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#000000", "#F0E442", "#56B4E9")
"""Okabe and Ito's colour-blind safe set, in the order in which arms take them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to assign credit."""

    title: str
    colour: str
    """Colour of its curves, the same in every figure."""
    overrides: Mapping[str, Any]
    runnable: bool = True
    """False if its estimator has changed since its runs. They are shown, but no run is made."""
