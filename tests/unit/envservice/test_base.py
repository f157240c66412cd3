"""Which actions an outcome admits."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from envservice.base import Outcome, outcome_of
from services.errors import EnvFault

LISTED = ["look", "click[< prev]", "click[next >]", "click[a <b> c]", "search[<your query>]"]


@pytest.mark.parametrize(("action", "admitted"), [
    ("look", True), ("search[red lamp]", True), ("search[<your query>]", True), ("click[< prev]", True),
    ("search[]", False), ("search[red", False), ("lookx", False), ("", False), ("click[next <b>]", False)])
def test_listed_actions_are_admitted_and_a_placeholder_stands_for_any_text(action, admitted):
    assert Outcome(observation="", admissible_actions=LISTED).admits(action) is admitted


def test_without_a_list_nothing_is_inadmissible():
    assert Outcome(observation="", admissible_actions=[]).admits("look")


@pytest.mark.parametrize(("field", "told"), [
    ({"done": np.bool_(True)}, "as done, and not a Python bool"),
    ({"won": 1}, "1 as won, and not a Python bool"), ({"observation": None}, "None as observation"),
    ({"admissible_actions": None}, "None as admissible_actions, and not a list of texts"),
    ({"admissible_actions": [1, 2]}, "[1, 2] as admissible_actions"), ({"admissible_actions": "go"}, "'go' as admis"),
    ({"info": None}, "None as info, and not texts, finite numbers and booleans by name"),
    ({"info": {"seen": [1]}}, "{'seen': [1]} as info"), ({"info": {"score": nan}}, "{'score': nan} as info"),
    ({"state": np.str_("hall")}, "as state"), ({"reward": None}, "the reward None"), ({"reward": "1"}, "reward '1'"),
    ({"reward": nan}, "the reward nan, which is no number of at most 1e+06 in size"),
    ({"reward": -inf}, "the reward -inf"), ({"reward": -1e308}, "the reward -1e+308"),
    ({"reward": 1000001}, "the reward 1000001"), ({"reward": 10**400}, "the reward 1000000000")])
def test_an_outcome_that_no_client_could_be_told_is_a_fault_that_names_the_field(field: dict[str, Any], told: str):
    """JSON would make null of a reward that is no number, and a reader could take that for 0."""
    with pytest.raises(EnvFault, match="its step returned") as caught:
        outcome_of(Outcome(**{"observation": "", "admissible_actions": [], **field}), "step")
    assert told in str(caught.value)


def test_a_reward_of_numpy_is_a_number():
    outcome = Outcome(observation="", admissible_actions=[], reward=np.float32(0.5))  # pyright: ignore[reportArgumentType]
    assert outcome_of(outcome, "step") is outcome
