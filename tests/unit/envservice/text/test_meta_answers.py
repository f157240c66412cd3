"""Answers with tagged reasoning, whatever the environment."""

import pytest

from envservice.base import Turn
from envservice.text.meta_answers import latest_answers, plan_of, read_meta, tagged

PLAN = "<planning>step 1: find a mug</planning><action>look</action>"


def turn(answer, *, action="look", admissible=True):
    return Turn(observation="seen", action=action, admissible=admissible, kept=answer)


@pytest.mark.parametrize(("text", "action", "valid", "tag"), [
    (PLAN, "look", True, "planning"),
    ("<Explore>desks</Explore> <ACTION> Go to desk 1 </ACTION>", "Go to desk 1", True, "explore"),
    ("<reflection>wrong</reflection><action>look</action> and more", "look", True, "reflection"),
    ("<think>a</think><action>look</action>", "look", False, ""),
    ("<monitor> </monitor><action>look</action>", "look", False, ""),
    ("<action>look</action><monitor>late</monitor>", "look", False, ""),
    ("<planning>a</planning><explore>b</explore><action>look</action>", "look", False, ""),
    ("<planning>a</planning><action>look</action><action>help</action>", "", False, ""),
    ("<planning>a <explore>b</explore></planning><action>look</action>", "look", False, ""),
    ("<planning><b></b></planning><action>look</action>", "look", False, ""),
    ("<planning>a<action>look</action>", "look", False, ""),
    ("<planning>a</explore><action>look</action>", "look", False, ""),
    ("<planning>\u4e00</planning><action>look</action>", "look", False, ""),
    ("", "", False, "")])
def test_an_answer_is_valid_with_one_action_after_one_tagged_block(text, action, valid, tag):
    parsed = read_meta(text)
    assert (parsed.action, parsed.valid, parsed.tag, parsed.kept) == (action, valid, tag, text)


def test_the_latest_plan_that_is_not_empty_stays():
    later = "<planning>step 1: heat it</planning><action>look</action>"
    assert plan_of([]) == ""
    assert plan_of([turn(PLAN), turn("<planning> </planning>")]) == "step 1: find a mug"
    assert plan_of([turn(PLAN), turn(later), turn("<monitor>ok</monitor>")]) == "step 1: heat it"


def test_the_latest_answers_are_three_at_most_and_keep_their_numbers():
    assert latest_answers([turn(PLAN)] * 5, str.upper).splitlines() == [
        "Your latest answers were:", *(f"[Observation {step}: 'SEEN', answer: '{PLAN}']" for step in (3, 4, 5))]


def test_a_scripted_answer_explores_by_a_new_action_of_the_named_kinds():
    answer = "<think>go on</think><action>look at sink</action>"
    end = "<action>look at sink</action>"

    def tag_after(*turns):
        return tagged(answer, turns, goal="boil water", explores=("look ", "go to "))

    assert tag_after() == f"<planning>go on, then boil water</planning>{end}"
    assert tag_after(turn("")) == f"<explore>go on</explore>{end}"
    assert tag_after(turn("", action="look at sink"), turn("")) == f"<monitor>go on</monitor>{end}"
    assert tag_after(turn("", action="fly", admissible=False)) == f"<reflection>fly failed, go on</reflection>{end}"
