"""Prompts for any environment of text, and answers with a thought, apart from the action, which alfworld/ covers."""

from __future__ import annotations

import pytest

from envservice.base import Outcome, Turn
from envservice.search.prompts import parse_action, query_of
from envservice.text.plain_prompts import PLAIN
from envservice.text.response_format import latest_answers, plan_of, read_meta, tagged, without_thought
from envservice.text.tool_calls import parse_calls


@pytest.mark.parametrize(("text", "rest"), [
    ("<think>\nhm\n</think>\n\ngo", "go"),
    ("hm</think>go\n", "go"),
    ("<think>\n\n</think>\n\n<think>\nhm\n</think>\n\ngo", "go"),
    (" go on ", "go on"),
    ("<think>\nhm, go", ""),
    ("<think></think><think>hm, go", ""),
    ("go\n<think>hm", "go"),
    ("", "")])
def test_an_answer_says_what_follows_its_last_thought(text: str, rest: str):
    """A prompt may end with the tag that opens the thought, and an answer may be cut before the thought ends."""
    assert without_thought(text) == rest


STUCK = 100_000
"""Times that a stuck model repeats a tag. A parser that reads the rest from each of them takes a quarter of an hour."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("parse", "text", "nothing"), [
    (read_meta, "<planning>" * STUCK, ""), (read_meta, "<action>" * STUCK, ""),
    (read_meta, f"<planning>{'<' * 8 * STUCK}</planning><action></action>", ""),
    (parse_action, "<search>" * STUCK, ""), (query_of, f"<answer>{'<search>' * STUCK}</answer>", ""),
    (parse_calls, "<tool_call>" * STUCK, []),
    (parse_calls, f"<tool_call><function=f>{'<parameter=a>' * STUCK}</function></tool_call>", []),
], ids=["block", "action", "markup", "search", "query", "call", "parameter"])
def test_an_answer_that_repeats_a_tag_is_read_at_once(parse, text, nothing):
    """Parsers run in the worker's event loop, which renews its claims and sends its heartbeats."""
    parsed = parse(text)
    assert getattr(parsed, "action", getattr(parsed, "calls", parsed)) == nothing


@pytest.mark.parametrize("text", [
    '<tool_call>{"name": "", "arguments": {}}</tool_call>', '[TOOL_CALLS][{"name": "", "arguments": {}}]'])
def test_a_call_of_no_tool_is_broken(text: str):
    parsed = parse_calls(text)
    assert (parsed.content, parsed.calls, parsed.complete) == (text, [], False)


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

FIRST = Outcome(observation="A hall.", admissible_actions=["north", "look"])
NOW = Outcome(observation="A yard.", admissible_actions=["south"])
TURNS = [Turn(observation="A hall.", action="look", admissible=True),
         Turn(observation="Dark.", action="north", admissible=True)]


@pytest.mark.parametrize(("history", "text"), [
    (5, "A hall.\nSteps so far: 2\n> look\nDark.\n> north\nA yard.\nActions: south\n"),
    (1, "A hall.\nSteps so far: 2\n> north\nA yard.\nActions: south\n"),
    (0, "A hall.\nSteps so far: 2\nA yard.\nActions: south\n"),
])
def test_the_last_steps_are_shown(history: int, text: str):
    assert PLAIN["compact"](history).render(FIRST, TURNS, NOW) == text


def test_the_first_prompt_has_no_past():
    assert PLAIN["compact"](2).render(FIRST, [], FIRST) == "A hall.\nActions: north; look\n"


def test_the_full_prompt_says_how_to_answer():
    text = PLAIN["full"](2).render(FIRST, [], FIRST)
    assert text.startswith("A hall.\nActions: north; look\n\nReason first, within <think> </think>")
    assert PLAIN["full"](2).parse("<think>so</think><action>North</action>").action == "North"


def test_an_environment_without_a_list_of_actions_shows_none():
    free = Outcome(observation="Say it.", admissible_actions=[])
    assert PLAIN["compact"](2).render(free, [], free) == "Say it.\n"
