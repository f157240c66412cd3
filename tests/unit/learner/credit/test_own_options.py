"""The options of an estimator of the user's own: its defaults count, and keys within them are checked."""

import pytest
from pydantic import BaseModel, Field

from learner.credit.estimator import WithinGroup
from learner.credit.options import CreditOptions
from learner.credit.registry import completed, make_options, without_former
from learner.credit.types import Credit
from learner.logged_groups.form import credit_options
from services.config.credit import CreditSection
from services.errors import UserError


class Plain(WithinGroup):
    """The estimator of a user: each step gets its own reward."""

    def group(self, group, options):
        rewards = [[step.reward for step in episode] for episode in group]
        return Credit(returns=rewards, values=None, deltas=None, raw_advantages=rewards, advantages=rewards,
                      states=[[step.state for step in episode] for episode in group])


class Undiscounted(Plain):
    """It has defaults of its own for keys that all estimators have."""

    class Options(CreditOptions):
        gamma: float = 1.0
        penalty: float = 0.0
        state_key: str = "normalized"


def test_an_estimator_of_ones_own_has_its_own_defaults_of_the_keys_of_all():
    own = f"{__name__}:Undiscounted"
    options = make_options(own)
    assert (options.gamma, options.penalty, options.state_key) == (1.0, 0.0, "normalized")
    assert make_options(own, gamma=0.95, state_key="observation").model_dump() == {
        **options.model_dump(), "gamma": 0.95, "state_key": "observation"}
    written = completed(CreditSection(estimator=own))
    assert written.gamma == completed(written).gamma == 1.0
    changed = without_former(CreditSection(estimator=own), CreditSection(estimator=f"{__name__}:Plain"), {"estimator"})
    assert completed(changed).gamma == 1.0


class Inner(BaseModel):
    """Options within an option."""

    b: int = 1


class Deep(Plain):
    """Its options are models."""

    class Options(CreditOptions):
        inner: Inner = Inner()
        several: list[Inner] = Field(default_factory=list)


def test_an_unknown_key_within_an_option_is_refused():
    own = f"{__name__}:Deep"
    assert make_options(own, inner={"b": 3}, several=[{"b": 4}]).several == [Inner(b=4)]
    with pytest.raises(UserError, match=r"^unknown key learner\.credit\.inner\.c; "):
        make_options(own, inner={"c": 3})
    with pytest.raises(UserError, match=r"^unknown key learner\.credit\.several\.1\.c; "):
        make_options(own, several=[{"b": 3}, {"c": 3}])
    with pytest.raises(UserError, match=r"^unknown option inner\.c; "):
        credit_options({"estimator": own, "inner": {"c": 3}})
