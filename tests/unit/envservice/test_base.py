"""Which actions an outcome admits."""

import pytest

from envservice.base import Outcome

LISTED = ["look", "click[< prev]", "click[next >]", "click[a <b> c]", "search[<your query>]"]


@pytest.mark.parametrize(("action", "admitted"), [
    ("look", True), ("search[red lamp]", True), ("search[<your query>]", True), ("click[< prev]", True),
    ("search[]", False), ("search[red", False), ("lookx", False), ("", False), ("click[next <b>]", False)])
def test_listed_actions_are_admitted_and_a_placeholder_stands_for_any_text(action, admitted):
    assert Outcome(observation="", admissible_actions=LISTED).admits(action) is admitted


def test_without_a_list_nothing_is_inadmissible():
    assert Outcome(observation="", admissible_actions=[]).admits("look")
