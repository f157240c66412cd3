"""An estimator of the user's own is tried on a made-up learner step, and its mistakes are told in one line."""

from dataclasses import replace
from math import isnan
from random import Random

import pytest

from learner.credit.checks import try_estimator
from learner.credit.estimator import WithinGroup
from learner.credit.explanation import CalculationLine, value_at
from learner.credit.group_operations import discounted, states
from learner.credit.registry import make_options
from learner.credit.types import Credit
from services.errors import UserError


class Returns(WithinGroup):
    """The returns as advantages."""

    def group(self, group, options):
        returns = discounted(group, options)
        return Credit(returns=returns, values=None, deltas=None, raw_advantages=returns, states=states(group),
                      advantages=[self.weighed(row) for row in returns])

    def weighed(self, row):
        return row


class DividesByTheReturn(Returns):
    """A division by zero in each group without a win, which a run meets sooner or later."""

    def weighed(self, row):
        share = 1 / sum(row)  # not in a list comprehension, which is a frame of its own before Python 3.12
        return [x * share for x in row]


class Writes(Returns):
    """Changes its input, which is frozen."""

    def group(self, group, options):
        group[0][0].reward = 0.0
        return super().group(group, options)


class Reverses(Returns):
    """Turns the lists of its input round, which a run makes for each call."""

    def group(self, group, options):
        for episode in group:
            episode.reverse()
        return super().group([episode[::-1] for episode in group], options)


class Leaves(Returns):
    """Ends the process, which would end the command without a word."""

    def weighed(self, row):
        raise SystemExit(3)


class Forgets(Returns):
    """A `batch` that returns nothing."""

    def batch(self, credits, options):
        return None


class Values(Returns):
    """Gives each state one and the same thing as its value."""

    given = None

    def group(self, group, options):
        credit = super().group(group, options)
        return replace(credit, values={state: self.given for row in credit.states for state in row})


class ListedValues(Returns):
    """Gives values in the form of the advantages."""

    def group(self, group, options):
        credit = super().group(group, options)
        return replace(credit, values=credit.returns)


class SeededWeight(Returns):
    """A weight that is random and the same in every object."""

    seed = 7

    def __init__(self):
        self.weight = Random(self.seed).random()

    def weighed(self, row):
        return [self.weight * x for x in row]


class UnseededWeight(SeededWeight):
    """A weight that each object draws for itself. A run makes an object in each process and at each learner step."""

    seed = None


class RunningMean(Returns):
    """Subtracts the mean of all that it has ever seen, of which a run forgets all after each learner step."""

    def __init__(self):
        self.seen = []

    def weighed(self, row):
        self.seen += row
        return [x - sum(self.seen) / len(self.seen) for x in row]


class ReadsValues(Returns):
    """Explains by the values of its own credit, which `gagpo explore` does not have: it reads an archive."""

    def group(self, group, options):
        credit = super().group(group, options)
        return replace(credit, values={state: (0.5, 1) for row in credit.states for state in row})

    def explain(self, group, credit, options, episode):
        values = [self.value(credit, episode, t) for t in range(len(group[episode]))]
        return [[CalculationLine(formula="V̄ = half", result=value)] for value in values]

    def value(self, credit, episode, t):
        return credit.values[credit.states[episode][t]][0]


class ReadsValuesByStep(ReadsValues):
    """Explains by `value_at`, which reads what the explorer has."""

    def value(self, credit, episode, t):
        assert isnan(credit.deltas[episode][t])
        value = value_at(credit, episode, t)
        assert value == 0.5
        return value


class SaysNothing(Returns):
    """A `legend` that returns nothing."""

    def legend(self, options):
        return None


@pytest.mark.parametrize("given", [1.0, (1.0,), (float("nan"), 1), (1.0, 1.5), [1.0, 1], None])
def test_a_value_is_a_finite_number_and_how_often_its_state_occurs(monkeypatch, given):
    """Else the archive of a run fails after its first update, and `gagpo credit` with a traceback."""
    monkeypatch.setattr(Values, "given", given)
    with pytest.raises(UserError) as error:
        try_estimator(make_options(f"{__name__}:Values"), 4)
    assert f"Values returned {given!r} as the value of the state " in str(error.value)
    monkeypatch.setattr(Values, "given", (1.0, 2))
    try_estimator(make_options(f"{__name__}:Values"), 4)


@pytest.mark.parametrize("name", ["Returns", "ReadsValuesByStep", "SeededWeight", "Reverses"])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_an_estimator_that_works_is_taken(size, name):
    try_estimator(make_options(f"{__name__}:{name}"), size)


@pytest.mark.parametrize(("name", "said"), [
    ("DividesByTheReturn", "failed on a made-up group (ZeroDivisionError: float division by zero (in weighed,"),
    ("Writes", "failed on a made-up group (AttributeError: immutable type: 'CreditStep' (in group, test_checks.py:"),
    ("Leaves", "failed on a made-up group (SystemExit: 3 (in weighed, test_checks.py:"),
    ("Forgets", "returned something that is no Credit"),
    ("ListedValues", "returned values of type list, not a dict; return"),
    ("RunningMean", "returned other numbers for the same groups; keep nothing between calls, and"),
    ("UnseededWeight", "returned other numbers for the same groups; keep nothing between calls, and"),
    ("ReadsValues", "failed (TypeError: 'NoneType' object is not subscriptable (in value, test_checks.py:"),
    ("SaysNothing", "returned None; return"),
])
def test_a_mistake_is_told_in_one_line(name, said):
    with pytest.raises(UserError) as error:
        try_estimator(make_options(f"{__name__}:{name}"), 4)
    assert f"the estimator {__name__}:{name} {said}" in str(error.value)
    assert "\n" not in str(error.value)
