"""The base of estimators, also of your own: it has everything but `group`."""

from __future__ import annotations

from typing import Any, ClassVar

from learner.credit.explanation import RAW, Explanation
from learner.credit.options import CreditOptions
from learner.credit.types import Credit, Group


class WithinGroup:
    """An estimator that needs neither tokens, nor a critic, nor other groups.

    A subclass says its `Options`, a subclass of CreditOptions with a docstring below each field, and defines
    `group(group, options) -> Credit`. It may define the other methods; see NamedEstimator.
    """

    Options: ClassVar[type[CreditOptions]] = CreditOptions
    needs_tokens: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False

    def batch(self, credits: list[Credit], options: Any) -> list[Credit]:  # noqa: ARG002 the hook's form
        """Returns the credits as they are: groups are on one scale already."""
        return credits

    def reads(self, options: Any) -> frozenset[str]:  # noqa: ARG002 all of them under all options
        """Returns all keys of the options."""
        return frozenset(self.Options.model_fields) - {"estimator"}

    def legend(self, options: Any) -> dict[str, str]:  # noqa: ARG002 the hook's form
        """Returns the meaning of the advantage before normalising alone."""
        return {RAW: "the advantage before normalising"}

    def explain(self, group: Group, credit: Credit, options: Any, episode: int) -> Explanation:  # noqa: ARG002
        """Returns no line for any step."""
        return [[] for _ in group[episode]]
