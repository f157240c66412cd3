"""The prompting baselines: what a model is told, and how its answers are read."""

import pytest

from envservice.alfworld.prompts import AlfworldFullTemplate
from envservice.base import Outcome, Turn
from envservice.search.prompts import SearchCompactTemplate, SearchFullTemplate
from envservice.text.plain_prompts import PLAIN
from rollout.prompting.policies import Direct, ReAct, Trial, counted_part, make_policy, reflection_on
from services.errors import UserError

TEMPLATE = AlfworldFullTemplate(2)
FIRST = Outcome(observation="You are in a room.\n\nYour task is to: find a Mug.", admissible_actions=["look", "go on"])
NOW = Outcome(observation="You see a mug 1.", admissible_actions=["take mug 1"])
QUESTION = Outcome(observation="Where is it?", admissible_actions=[])


def trial(turns: int = 1) -> Trial:
    return Trial(first=FIRST, now=NOW if turns else FIRST,
                 answers=["Thought: on\nAction: go on\nObservation: won"][:turns],
                 turns=[Turn(observation=FIRST.observation, action="go on", admissible=True)][:turns])


def test_direct_asks_with_the_prompt_of_training():
    (message,) = Direct(TEMPLATE).messages(trial(), ["never read"])
    assert message == {"role": "user", "content": TEMPLATE.render(FIRST, trial().turns, NOW)}


def test_react_is_a_conversation_whose_last_message_lists_the_actions():
    """The rules come first, once; what the model made up after its action is left out."""
    asked, answer, now = ReAct(TEMPLATE).messages(trial(), [])
    assert [asked["role"], answer["role"], now["role"]] == ["user", "assistant", "user"]
    assert asked["content"].startswith("Solve the task")
    assert asked["content"].endswith(f"Observation: {FIRST.observation}")
    assert answer["content"] == "Thought: on\nAction: go on"
    assert now["content"] == "Observation: You see a mug 1.\nAdmissible actions: take mug 1"


@pytest.mark.parametrize(("answer", "kept"), [
    ("<think>\nObservation: so\n</think>\n\nThought: on\nAction: go on", "Thought: on\nAction: go on"),
    ("<think>\nI go on and", "")])
def test_the_conversation_of_react_keeps_no_thought_in_tags(answer: str, kept: str):
    played = trial()
    played.answers[:] = [answer]
    assert ReAct(TEMPLATE).messages(played, [])[1] == {"role": "assistant", "content": kept}


def test_the_first_turn_of_react_has_rules_memory_observation_and_actions():
    (message,) = ReAct(TEMPLATE).messages(trial(0), ["look first", "then go"])
    parts = message["content"].split("\n\n")
    assert parts[1] == "Your plans from earlier, lost trials of this task:\n- look first\n- then go"
    assert parts[-1].endswith("Admissible actions: look; go on")


def test_react_tells_the_form_of_an_action_if_the_environment_lists_none():
    """In search QA the model was told the question alone, and every answer was an empty search."""
    asked = Trial(first=QUESTION, now=QUESTION, turns=[], answers=[])
    (message,) = ReAct(SearchFullTemplate()).messages(asked, ["be brief"])
    rules, *_, observation = message["content"].split("\n\n")
    assert rules.endswith("\nAction: one action, in the form that the instructions below ask for; the reasoning goes "
                          "into the line above")
    assert "<search> your query </search>" in message["content"]
    assert "- be brief" in message["content"]
    assert observation == "Observation: Where is it?"


def test_react_is_refused_if_nothing_tells_the_form_of_an_action():
    asked = Trial(first=QUESTION, now=QUESTION, turns=[], answers=[])
    with pytest.raises(UserError, match=r"lists no actions, and .* has no instructions; set env.prompt=full"):
        ReAct(SearchCompactTemplate()).messages(asked, [])


@pytest.mark.parametrize(("text", "action", "valid"), [
    ("Thought: a\nAction: <search>x</search>", "<search>x</search>", True),
    ("<think>a</think> <answer>x</answer>", "<answer>x</answer>", False),
    ("Action: search[x]", "", False)])
def test_react_reads_the_form_of_an_environment_that_lists_no_actions(text: str, action: str, valid: bool):
    parsed = ReAct(SearchFullTemplate()).parse(text)
    assert (parsed.action, parsed.valid) == (action, valid)


def test_react_takes_an_action_also_in_the_tags_that_the_prompt_asks_for():
    assert ReAct(PLAIN["full"](2)).parse("Thought: a\nAction: <action>guess 5</action>").action == "guess 5"


@pytest.mark.parametrize(("text", "action", "valid"), [
    ("Thought: I see it.\nAction: Take Mug 1", "take mug 1", True),
    ("Thought: a\nAction 3: go on\nObservation 3: x\nAction: look", "go on", True),
    ("**Action:** look ", "look", True),
    ("> action: look", "look", True),
    ("I will go.\ngo on", "go on", False),
    ("Thought: a\nObservation: you won", "thought: a", False),
    ("<think>\nMaybe:\nAction: look\nThat wastes a turn.\n</think>\n\nThought: b\nAction: go to oven 1",
     "go to oven 1", True),
    ("<think>\nIt showed\nObservation: a mug\n</think>\nAction: look", "look", True),
    ("Action: wait\n</think>\nAction: look", "look", True),
    ("<think>\nMaybe:\nAction: look", "", False),
    ("", "", False)])
def test_react_reads_the_first_action_line(text: str, action: str, valid: bool):
    parsed = ReAct(TEMPLATE).parse(text)
    assert (parsed.action, parsed.valid) == (action, valid)


def test_react_reads_an_endless_line_at_once():
    """A pattern that tries every place at which the blanks could begin takes minutes for it."""
    assert ReAct(TEMPLATE).parse("Action: look" + " *" * 100_000 + "|").action.startswith("look")


def test_an_answer_ends_where_the_model_makes_up_an_observation():
    assert counted_part("Action: a\nObservation: b\nAction: c") == "Action: a"
    assert counted_part("Thought: an observation: no\nAction: a") == "Thought: an observation: no\nAction: a"


def test_a_reflection_reads_memory_and_the_whole_trial():
    (message,) = reflection_on(trial(), ["look first"])
    text = message["content"]
    assert text.startswith("Your plans from earlier, lost trials of this task:\n- look first\n\n")
    assert f"Observation: {FIRST.observation}\nAction: go on\n\nObservation: You see a mug 1.\n\nThe trial" in text


def test_reflexion_is_the_only_policy_that_reflects_on_a_trial():
    assert [make_policy(name, TEMPLATE).reflects for name in ("direct", "react", "reflexion")] == [False, False, True]
