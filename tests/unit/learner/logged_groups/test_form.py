"""Logged groups as estimators see them, for keys that read more than the text."""

import pytest

from learner.credit.gagpo import Gagpo
from learner.logged_groups.form import credit_of, credit_options, parse_group, quality_warnings
from services.errors import UserError

STEP = {"reward": 0}
EPISODE = {"steps": [{"state": "N", "admissible": ["go", "look"], "unchanged": True, **STEP},
                     {"state": "N", "admissible": ["look", "go"], **STEP},
                     {"state": "N", "admissible": ["go"], **STEP}],
           "final_state": "N", "final_admissible": ["go"]}


def states(**options):
    credit, = credit_of([parse_group({"episodes": [EPISODE]})], credit_options(options))
    return credit.states[0]


def test_the_lists_of_admissible_actions_tell_equal_texts_apart():
    first, second, third = states(state_key="observation+admissible")
    assert first == second != third
    assert len(set(states())) == 1


@pytest.mark.parametrize("key", ["prompt", "environment", "mine:Key"])
def test_a_key_that_compares_what_only_a_run_records_is_refused(key: str):
    with pytest.raises(UserError, match=f"state_key {key}: the input has texts.*; write what it compares into"):
        credit_options({"state_key": key})


def test_with_stay_an_action_that_changed_nothing_keeps_its_state():
    episode = {"steps": [{"state": "S", "unchanged": True, **STEP}, {"state": "N", **STEP}]}
    for stay, expected in ((False, ["S", "N"]), (True, ["S", "S"])):
        credit, = credit_of([parse_group({"episodes": [episode]})], credit_options({"stay": stay}))
        assert credit.states == [expected]


@pytest.mark.parametrize("data", ['{"episodes": [{"steps": [{"state": "S", "rewrd": 1}]}]}',
                                  {"episodes": [{"steps": [{"state": "S", "rewrd": 1}]}]}])
def test_a_misspelt_field_of_a_step_is_answered_with_the_right_one(data: str | dict[str, object]):
    with pytest.raises(UserError, match=r"unknown field `rewrd`; did you mean `reward`\?$"):
        parse_group(data)


class Same(Gagpo):
    """An estimator of the user's own, whose credit is not touched."""


@pytest.mark.parametrize(("name", "told"), [("gagpo", True), (f"{__name__}:Same", False)])
def test_a_group_of_one_episode_is_warned_of_only_where_it_gets_no_credit(name: str, told: bool):
    groups = [parse_group({"episodes": [{"steps": [{"state": "S", "reward": k}, {"state": "T", "reward": 0}]}
                                        for k in range(n)]}) for n in (1, 3)]
    options = credit_options({"estimator": name})
    lines = quality_warnings(groups, credit_of(groups, options), options)
    assert any("1 of 2 groups have one episode" in line for line in lines) == told
