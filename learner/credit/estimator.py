"""The interface of estimators. docs/tasks/own-estimator.md shows one of your own."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from learner.credit.explanation import Explanation
from learner.credit.types import Credit, Group


class Estimator(Protocol):
    """One way to assign credit: one class, two hooks, one entry in the registry. `options` is an instance of its
    Options."""

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


class NamedEstimator(Estimator, Protocol):
    """An estimator of the registry: it also returns the keys that it reads, and explains a step to people."""

    def reads(self, options: Any) -> frozenset[str]:
        """Returns the keys of `learner.credit` that can change an advantage under these options.

        registry.keys_read adds keys that only affect another key, such as `similarity` for `state_key`.
        """
        ...

    def legend(self, options: Any) -> dict[str, str]:
        """Returns the meaning of a step's numbers for people: symbol (V̄, δ, Â or A) -> text.

        Leave out a symbol that has no number.
        """
        ...

    def explain(self, group: Group, credit: Credit, options: Any, episode: int) -> Explanation:
        """How the numbers of one episode come about, from the credit of its group: lines for each of its steps.

        The credit is that of an archive: `values` is None, `baselines` has V̄ of each step, and an absent number is nan.
        A number that depends on other groups (whitening, `normalize: batch`) has no line.
        """
        ...
