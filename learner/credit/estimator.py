"""The interface of estimators, and a base class with defaults. docs/tasks/own-estimator.md shows how to write one."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from learner.credit.explanation import RAW, Explanation
from learner.credit.options import CreditOptions
from learner.credit.types import Credit, Group


class Estimator(Protocol):
    """One way to assign credit: a class with an entry in the registry. `options` is an instance of its Options.

    `group` and `batch` compute credit. `reads`, `legend` and `explain` describe it to the config checks and to people.
    """

    Options: ClassVar[Any]
    """A subclass of CreditOptions: the keys of `learner.credit` that it knows."""
    needs_tokens: ClassVar[bool]
    """Whether every CreditStep must have its number of tokens."""
    needs_critic: ClassVar[bool]
    """Whether the advantages are scores that the learner turns into token advantages with a critic's values."""

    def group(self, group: Group, options: Any) -> Credit:
        """Returns the credit of one group. Pure. It needs all K episodes and no other group."""
        ...

    def batch(self, credits: list[Credit], options: Any) -> list[Credit]:
        """Returns the final credit of all groups of a learner step, in training order. Most estimators change none."""
        ...

    def reads(self, options: Any) -> frozenset[str]:
        """Returns the keys of `learner.credit` that can change an advantage under these options.

        registry.keys_read adds keys that only affect another key, such as `similarity` for `state_key`.
        """
        ...

    def legend(self, options: Any) -> dict[str, str]:
        """Returns the meaning of a step's numbers, for people: symbol (V̄, δ, Â or A) -> text.

        A symbol without a number is left out.
        """
        ...

    def explain(self, group: Group, credit: Credit, options: Any, episode: int) -> Explanation:
        """Returns the calculation of one episode's numbers from the credit of its group: lines for each step.

        The credit comes from an archive: `values` is None, `baselines` has V̄ of each step, absent numbers are NaN.
        A number that depends on other groups (whitening, `normalize: batch`) has no line.
        """
        ...


class WithinGroup:
    """An estimator that needs neither tokens, nor a critic, nor other groups.

    A subclass sets `Options`, a subclass of CreditOptions with a docstring below each field, and defines
    `group(group, options) -> Credit`. It may override the other methods; see Estimator.
    """

    Options: ClassVar[type[CreditOptions]] = CreditOptions
    needs_tokens: ClassVar[bool] = False
    needs_critic: ClassVar[bool] = False

    def batch(self, credits: list[Credit], options: Any) -> list[Credit]:  # noqa: ARG002 the hook's form
        """Returns the credits unchanged: groups are on one scale already."""
        return credits

    def reads(self, options: Any) -> frozenset[str]:  # noqa: ARG002 all of them under all options
        """Returns all keys of the options."""
        return frozenset(self.Options.model_fields) - {"estimator"}

    def legend(self, options: Any) -> dict[str, str]:  # noqa: ARG002 the hook's form
        """Returns the meaning of Â alone."""
        return {RAW: "the advantage before normalising"}

    def explain(self, group: Group, credit: Credit, options: Any, episode: int) -> Explanation:  # noqa: ARG002
        """Returns no lines."""
        return [[] for _ in group[episode]]
