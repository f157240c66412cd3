"""The keys that an estimator declares are the keys that it reads."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from random_groups import credit_steps, groups, options

from learner.credit.estimator import WithinGroup
from learner.credit.options import CreditOptions
from learner.credit.registry import (
    ESTIMATORS,
    completed,
    declared,
    estimator,
    keys_read,
    make_options,
    option_tables,
    options_of,
    unread,
    without_former,
)
from learner.credit.state_keys import Keys
from learner.credit.types import Credit, CreditStep
from learner.logged_groups.form import credit_of, credit_options, parse_group
from services.config.sections import CreditSection
from services.errors import UserError

OTHER = {"gamma": 0.5, "lam": 0.25, "penalty": 3.0, "penalty_mode": "reward", "normalize": "none", "ddof": 0,
         "bootstrap": True, "broadcast": 2.0, "prior": 7.0, "mode": "mean_norm", "statistics": "trajectories",
         "omega": 3.0, "leave_out": False, "history": 0,
         "alpha": 3.0, "decay": 0.5, "values": "turns", "spread_floor": 0.7,
         "shrinkage": 1.0, "gate": 2.0}
"""A second value for each key that an estimator itself can read."""
OF_EPISODES = ("crbc", "graphhca")
"""Estimators whose `statistics` are `trajectories` by default."""
BY_THE_CRITIC = {("ppo", "gamma"), ("ppo", "lam")}
"""The learner reads these where it has the critic's values; learner/critic.py."""
TELLING = [[{"state": s, "reward": 0.0, "invalid": s == "B" and i == 1, "tokens": 1 + i,
             "action": f"to {text[i + 1:i + 2]}"} for i, s in enumerate(text)]
           for text in ("ABC", "ABBD", "ACD", "EA")]
TELLING[0][-1]["reward"] = 10.0
TELLING[2][0]["reward"] = 2.0
TELLING[0][0]["tag"] = TELLING[1][0]["tag"] = "planning"


def advantages(group, section):
    chosen = estimator(section.estimator)
    credit, = chosen.batch([chosen.group(group, section)], section)
    return credit.advantages


@given(groups, options, st.sampled_from(sorted(ESTIMATORS)))
def test_a_key_that_is_not_read_changes_no_advantage(group, given_options, name):
    before = make_options(**given_options, estimator=name)
    unread = OTHER.keys() - keys_read(before)
    after = before.model_copy(update={key: OTHER[key] for key in unread})
    assert advantages(credit_steps(group), after) == advantages(credit_steps(group), before)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_key_that_is_read_changes_some_advantage(name):
    cut = [{"steps": steps, "cut_in": "A" if k == 1 else None} for k, steps in enumerate(TELLING)]
    before = make_options(estimator=name, penalty=0.1)
    for key in keys_read(before) & OTHER.keys():
        if (name, key) not in BY_THE_CRITIC:
            second = "rows" if key == "statistics" and name in OF_EPISODES else OTHER[key]
            after = before.model_copy(update={key: second})
            assert advantages(credit_steps(cut), after) != advantages(credit_steps(cut), before), key


def test_keys_of_keys_are_read_only_where_their_key_is():
    assert "penalty" not in keys_read(make_options(penalty_mode="none"))
    assert "similarity" not in keys_read(make_options())
    assert "similarity" in keys_read(make_options(state_key="embedding"))
    assert "similarity" not in keys_read(make_options(estimator="grpo", state_key="embedding"))
    assert "statistics" not in keys_read(make_options())
    assert "statistics" in keys_read(make_options(broadcast=0.5))


class Halves(WithinGroup):
    """The estimator of a user: half of what the step earned, times `factor`."""

    class Options(CreditOptions):
        factor: float = Field(default=1.0, gt=0)
        """Factor on the advantage."""

    def group(self, group, options):
        half = [[options.factor * step.reward / 2 for step in episode] for episode in group]
        return Credit(returns=half, values=None, deltas=None, raw_advantages=half, advantages=half,
                      states=[[step.state for step in episode] for episode in group])


class ByLength:
    """The state key of a user: the length of the observation, in units of `unit`."""

    class Options(BaseModel):
        unit: int = 1

    knows_cuts = False

    def keys(self, group, options):
        return Keys(steps=[[str(len(step.observation) // options.unit) for step in episode.steps] for episode in group],
                    cut_in=[None] * len(group))


OWN = {"estimator": f"{__name__}:Halves", "state_key": f"{__name__}:ByLength"}


def test_an_estimator_and_a_key_of_ones_own_have_options_that_are_checked():
    options = make_options(**OWN, factor=3.0, unit=2)
    assert advantages([[CreditStep(state="S", reward=4.0)]], options) == [[6.0]]
    assert options.unit == 2
    assert make_options(**OWN).factor == 1.0
    assert {"factor", "unit"} <= keys_read(options)
    with pytest.raises(UserError, match=r"^learner.credit.factor cannot be 0.0; it should be greater than 0$"):
        make_options(**OWN, factor=0.0)
    with pytest.raises(UserError, match=r"^unknown key learner.credit.factor: the estimator gagpo has none of this"):
        make_options(factor=1.0)
    with pytest.raises(UserError, match="bootstrap needs the state key of the last observation"):
        make_options(state_key=OWN["state_key"], bootstrap=True)


class Plain(WithinGroup):
    """The estimator of a user who needs no options."""

    def group(self, group, options):
        rewards = [[step.reward for step in episode] for episode in group]
        return Credit(returns=rewards, values=None, deltas=None, raw_advantages=rewards, advantages=rewards,
                      states=[[step.state for step in episode] for episode in group])


def test_an_estimator_of_ones_own_without_options_takes_those_that_all_have():
    plain = {"estimator": f"{__name__}:Plain"}
    assert advantages([[CreditStep(state="S", reward=4.0)]], make_options(**plain, gamma=0.5)) == [[4.0]]
    assert make_options(**plain, lam=0.5).lam == 0.5  # another estimator's key may stay in a config
    with pytest.raises(UserError, match=r"^unknown key learner.credit.lamm: the estimator .*:Plain has none of this"):
        make_options(**plain, lamm=0.5)
    with pytest.raises(UserError, match=r"^learner.credit.lam cannot be 'high'"):
        make_options(**plain, lam="high")
    with pytest.raises(UserError, match=r"^learner.credit.unit cannot be 'long'"):
        make_options(**plain, state_key=OWN["state_key"], unit="long")


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


class WeightsOptions(CreditOptions):
    """An option whose default is made for each object."""

    weights: list[float] = Field(default_factory=lambda: [1.0])


class Weights(Plain):
    """An estimator with an option that it does not read."""

    Options = WeightsOptions

    def reads(self, options):
        return frozenset({"gamma"})


def test_a_default_that_a_function_makes_is_a_default():
    section = make_options(f"{__name__}:Weights")
    assert declared(section)["weights"] == [1.0]
    assert unread(section, {"weights": [1.0]}) == {}


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


def test_an_unknown_key_proposes_a_similar_one_or_else_those_of_the_estimator():
    with pytest.raises(UserError, match=r"; did you mean learner.credit.gamma\?$"):
        make_options(gama=1.0)
    with pytest.raises(UserError, match=r"; did you mean learner.credit.omega\?$"):
        make_options(omga=1.0)
    with pytest.raises(UserError, match="; it has estimator, gamma, penalty, penalty_mode, state_key, stay, ddof"):
        make_options("grpo", zzzzzz=1.0)


class Short(Halves):
    def group(self, group, options):
        credit = super().group(group, options)
        return replace(credit, advantages=[row[:-1] for row in credit.advantages])


class Divided(Halves):
    def group(self, group, options):
        return replace(super().group(group, options), advantages=[[float("nan")] * len(row) for row in group])


def changed(**wrong: object) -> type[Halves]:
    """A user's estimator that returns something else in these fields of its Credit."""
    class Changed(Halves):
        def group(self, group, options):
            return replace(super().group(group, options), **wrong)

    return Changed


ShortReturns = changed(returns=[[1.0]])
NoStates = changed(states=[])
NothingRaw = changed(raw_advantages=None)
Arrays = changed(advantages=[np.array([1.0, 2.0])])
Words = changed(advantages=[[1.0, "high"]])
Valueless = changed(values={"S": (1.0, 1)})


class OneForAll(Halves):
    def batch(self, credits, options):
        return credits * 2


class Forgetful(Halves):
    def group(self, group, options):
        """Returns nothing."""


class Needy(Halves):
    def __init__(self, level):
        self.level = level


class Leaving(Halves):
    """Ends the process, which ended the command without a word."""

    def group(self, group, options):
        sys.exit(3)


class WrongDefault(Halves):
    """Its code failed on the text, or worked with it."""

    class Options(CreditOptions):
        level: float = "nope"


@pytest.mark.parametrize(("name", "message"), [
    ("Short", "Short returned another number of advantages than there are steps; return one number for each step"),
    ("Divided", "Divided returned nan among advantages, which is no finite number"),
    ("ShortReturns", "ShortReturns returned another number of returns than there are steps"),
    ("NoStates", "NoStates returned another number of states than there are steps; return one text for each step"),
    ("NothingRaw", "NothingRaw returned raw advantages with NoneType in place of a list"),
    ("Arrays", "Arrays returned advantages with ndarray in place of a list; return a list of lists, "),
    ("Words", "Words returned 'high' among advantages; return numbers"),
    ("Valueless", "Valueless returned values without one for the state 'X'"),
    ("OneForAll", "OneForAll returned 2 credits for 1 group; return one for each group from `batch`"),
    ("Forgetful", "Forgetful returned something that is no Credit"),
    ("Needy", "Needy cannot be made (TypeError: "),
    ("Leaving", "Leaving ended the process (SystemExit: 3 (in group, test_registry.py:"),
    ("WrongDefault", "option level cannot be 'nope'; it should be a valid number")])
def test_a_mistake_in_an_estimator_of_ones_own_is_told_in_one_line(name, message):
    group = parse_group({"episodes": [{"steps": [{"state": "S", "reward": 1}, {"state": "X", "reward": 0}]}]})
    with pytest.raises(UserError) as caught:
        credit_of([group], credit_options({"estimator": f"{__name__}:{name}"}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "message"), [
    ("gagp", "there is no credit estimator 'gagp'; use one of: gagpo, "),
    ("no_such_module:Name", "the estimator no_such_module:Name cannot be imported"),
    (f"{__name__}:Nothing", "has no Nothing"), (f"{__name__}:ByLength", "is no estimator, because it has no")])
def test_an_unknown_estimator_is_refused_in_one_line(name, message):
    with pytest.raises(UserError) as caught:
        make_options(name)
    assert message in str(caught.value)


class Unreadable(Halves):
    """Its `reads` looks up an option that it does not have."""

    def reads(self, options):
        return frozenset({options.missing})


def test_an_estimator_that_cannot_say_what_it_reads_is_told_in_one_line():
    with pytest.raises(UserError, match=r"^reads of the estimator .*:Unreadable failed \(AttributeError: .*; fix "):
        keys_read(CreditSection.model_validate({"estimator": f"{__name__}:Unreadable"}))


def test_the_section_of_a_config_is_completed_with_the_options_of_its_estimator():
    """Keys of other estimators stay, so a run of an older version reads as it was written."""
    section = completed(CreditSection.model_validate({"estimator": "gigpo", "lam": 0.5, "prior": 9.0}))
    written = section.model_dump()
    assert (written["omega"], written["mode"], written["lam"], written["prior"]) == (1.0, "mean_std_norm", 0.5, 9.0)
    assert completed(section) == section


def test_the_options_of_shipped_estimators_are_the_frozen_ones():
    """A new option is a reviewed decision."""
    own = {title: sorted(set(model.model_fields) - set(CreditSection.model_fields))
           for title, _, model in option_tables()}
    recursion = ["bootstrap", "ddof", "lam", "normalize", "spread_floor"]
    step_term = ["broadcast", "ddof", "mode", "omega", "statistics"]
    assert own == {
        "estimator gagpo": sorted([*recursion, "broadcast", "mode", "statistics"]),
        "estimator gagpo_loo": sorted([*recursion, "broadcast", "mode", "prior", "statistics"]),
        "estimator gagpo_boot": recursion,
        "estimator graft": ["ddof", "normalize", "spread_floor"], "estimator graphhca": step_term,
        "estimator crbc": sorted([*step_term, "spread_floor"]),
        "estimator gagpo_graph": sorted([*recursion, "leave_out", "prior"]),
        "estimator hgpo": ["alpha", "history", "mode"], "estimator g2po": ["ddof", "mode", "omega", "statistics"],
        "estimator graphgpo": ["ddof", "decay", "mode", "statistics"],
        "estimator adastep": ["ddof", "gate", "mode", "shrinkage", "statistics"],
        "estimator rlvmr": ["ddof", "mode", "omega", "statistics"],
        "estimator gigpo": ["ddof", "mode", "omega", "statistics"], "estimator grpo": ["ddof", "mode", "statistics"],
        "estimator rloo": ["statistics"], "estimator reinforce_pp": ["ddof"],
        "estimator reinforce_pp_baseline": ["ddof", "statistics"], "estimator ppo": ["lam", "values"],
        "state key similarity": ["similarity"], "state key embedding": ["similarity"]}


def test_a_key_that_is_idle_under_an_estimator_has_the_default_of_the_first_that_has_it():
    """GAGPO's `broadcast` is 0 and CRBC's 1: neither is reported under GiGPO as a key that the user set."""
    assert declared(make_options("gigpo"))["broadcast"] == 0.0
    assert declared(make_options("crbc"))["broadcast"] == 1.0
    changed = without_former(make_options("gigpo", **completed(make_options("crbc")).model_dump(exclude={"estimator"})),
                             completed(make_options("crbc")), ["estimator"])
    assert unread(options_of(changed), completed(changed).model_dump()) == {}
