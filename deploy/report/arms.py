"""Arms: the ways to train that a report or an experiment compares."""

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
    """Of its curves, the same in every figure (Okabe and Ito's colour-blind safe set)."""
    overrides: Mapping[str, Any]
    runnable: bool = True
    """False: its estimator has changed since its runs. They are shown; none is made."""
