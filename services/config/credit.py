"""The `learner.credit` section: what all estimators share. Each estimator and each state key adds options of its own.

The section is open, because services do not know the estimators: learner/credit/registry.py checks the keys that it
does not name here, when a command reads a config.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from services.config.env import Section

LEAST_MIXED = 0.1
"""Share of turns in states of unlike turns below which no estimator needs a warning."""


class CreditSection(Section):
    """How the return of an episode is credited to its turns. docs/algorithms.md has the formulas. The estimator and
    the state key add keys of their own, which have tables below."""

    # Docstrings are for `gagpo credit --help`. Defaults are those of own estimators too, and may be wrong.
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, validate_default=True)

    estimator: str = "gagpo"
    """Name of the credit estimator, or `module:Name` of your own."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount γ per turn."""
    penalty: float = Field(default=0.1, ge=0)
    """Amount subtracted for an invalid turn; penalty_mode says from what."""
    penalty_mode: Literal["local", "reward", "none"] = "local"
    """Where the penalty is subtracted: from the step's own advantage (local), from its reward, or nowhere."""
    state_key: str = "observation"
    """Which turns count as the same state and share a value, or `module:Name` of your own key."""
    stay: bool = False
    """Whether a turn after an action that changed nothing is in the state of the turn before it, whatever its text. The
    environment says what changed nothing: ALFWorld answers "Nothing happens.", WebShop shows the same page."""
