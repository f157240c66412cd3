"""Prompts and answers of ALFWorld, character by character."""

from __future__ import annotations

import pytest

from envservice.alfworld.prompts import (
    AlfworldCompactMetaTemplate,
    AlfworldCompactTemplate,
    AlfworldFullTemplate,
    AlfworldMetaTemplate,
    task_of,
)
from envservice.alfworld.spec import SPEC
from envservice.base import Outcome, Turn
from envservice.registry import make_template, open_environment
from envservice.text.response_format import REASONING_TAGS, read_answer, read_lowered
from rollout.demonstrations import demonstrate
from services.config.tree import EnvSection, SftSection
from services.errors import UserError

FIRST = Outcome(
    observation=(
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a bed 1, and a desk 1.\n\nYour task is to: examine the mug with the desklamp."
    ),
    admissible_actions=["go to bed 1", "go to desk 1", "help", "inventory", "look"],
)
AT_BED = Outcome(
    observation="You arrive at bed 1. On the bed 1, you see nothing.",
    admissible_actions=["examine bed 1", "go to desk 1", "help", "inventory", "look"],
)
GO = Turn(observation=FIRST.observation, action="go to bed 1", admissible=True)
MISS = Turn(observation=AT_BED.observation, action="take mug 1 from bed 1", admissible=False)
STUCK = Outcome(observation="Nothing happens.", admissible_actions=AT_BED.admissible_actions)
INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason step by step about the current situation; this reasoning MUST be enclosed within <think> </think> "
    "tags.\n"
    "Then choose one admissible action for the current step and present it within <action> </action> tags."
)


def test_the_task_is_what_follows_its_announcement():
    assert task_of(FIRST) == "examine the mug with the desklamp."
    assert task_of(AT_BED) == ""


def test_full_first_step_has_no_history():
    assert AlfworldFullTemplate().render(FIRST, [], FIRST) == (
        "You are an expert agent operating in the ALFRED Embodied Environment.\n"
        f"Your current observation is: {FIRST.observation}\n"
        "Your admissible actions of the current situation are: ['go to bed 1'\n 'go to desk 1'\n 'inventory'\n 'look'"
        f"].\n\n{INSTRUCTION}"
    )


def test_full_with_history_quotes_raw_observations_and_parsed_actions():
    assert AlfworldFullTemplate(history=2).render(FIRST, [GO, MISS], STUCK) == (
        "You are an expert agent operating in the ALFRED Embodied Environment. "
        "Your task is to: examine the mug with the desklamp.\n"
        "Prior to this step, you have already taken 2 step(s). Below are the most recent 2 observations and the "
        f"corresponding actions you took: [Observation 1: '{FIRST.observation}', Action 1: 'go to bed 1']\n"
        "[Observation 2: 'You arrive at bed 1. On the bed 1, you see nothing.', Action 2: 'take mug 1 from bed 1']\n"
        "You are now at step 3 and your current observation is: Nothing happens.\n"
        "Your admissible actions of the current situation are: ['examine bed 1'\n 'go to desk 1'\n 'inventory'\n "
        f"'look'].\n\n{INSTRUCTION}"
    )


def test_full_history_is_bounded_and_numbered_absolutely():
    text = AlfworldFullTemplate(history=1).render(FIRST, [GO, MISS, MISS], STUCK)
    assert "most recent 1 observations" in text
    assert "already taken 3 step(s)" in text
    assert "[Observation 3: '" in text
    assert "Observation 2" not in text


def test_full_without_history_looks_like_a_first_step():
    text = AlfworldFullTemplate(history=0).render(FIRST, [GO], AT_BED)
    assert text.startswith("You are an expert agent operating in the ALFRED Embodied Environment.\nYour current obs")
    assert "Prior to this step" not in text


def test_compact_first_step_drops_banner_room_and_what_never_helps():
    assert AlfworldCompactTemplate().render(FIRST, [], FIRST) == (
        "Task: examine the mug with the desklamp\nDone: -\nNow: You are in the middle of a room.\n"
        "Actions: -\nSeen: -\nNew: bed 1, desk 1\n"
    )


def test_compact_marks_failures_and_shows_the_last_actions_only():
    assert AlfworldCompactTemplate(history=2).render(FIRST, [GO, GO, MISS], STUCK) == (
        "Task: examine the mug with the desklamp\nDone: go to bed 1; take mug 1 from bed 1 failed\n"
        "Now: Nothing happens.\nActions: -\nSeen: -\nNew: desk 1\n"
    )
    assert "Done: -\n" in AlfworldCompactTemplate(history=0).render(FIRST, [GO], AT_BED)


def test_compact_groups_objects_and_places_by_kind_and_tells_seen_from_new():
    now = Outcome(
        observation="You open the drawer 2.",
        admissible_actions=[
            "close drawer 2", "examine drawer 2", "go to bed 1", "go to drawer 1", "go to drawer 10", "go to drawer 3",
            "help", "inventory", "look", "take cd 1 from drawer 2", "take pen 2 from drawer 2",
            "take pen 3 from drawer 2", "use desklamp 1",
        ],
    )
    failed = Turn(observation=AT_BED.observation, action="go to drawer 3", admissible=False)
    assert AlfworldCompactTemplate(history=0).render(FIRST, [GO, failed], now) == (
        "Task: examine the mug with the desklamp\nDone: -\nNow: You open the drawer 2.\n"
        "Actions: take from drawer 2: cd 1, pen 2 3; close drawer 2; use desklamp 1\n"
        "Seen: bed 1\nNew: drawer 1 3 10\n"
    )


@pytest.mark.parametrize(("text", "action", "valid"), [
    ("<think>find mug</think><action>go to shelf 1</action>", "go to shelf 1", True),
    ("<think>a</think>\n<action>  Go To Shelf 1 \n</action> trailing", "go to shelf 1", True),
    ("<think>a</think><ACTION>Look</ACTION>", "look", True),
    ("<action>look</action><think></think>", "look", True),
    ("<think>a</think><action>dance</action>", "dance", True),
    ("<think>a</think><action></action>", "", True),
    ("<think>a</think><action>look</action><action>inventory</action>", "look", True),
    ("<think>a</think></action>look<action>", "", True),
    ("<think>a</think><action>a <action>look</action>", "a <action>look", True),
    ("<action>look</action>", "look", False),
    ("<think>a<action>look</action>", "look", False),
    ("<THINK>a</THINK><action>look</action>", "look", False),
    ("<think>\u770b</think><action>look</action>", "look", False),
    ("<think>a</think><action>look\u4e00</action>", "look\u4e00", False),
    ("<think>\u3042\ua000</think><action>look</action>", "look", True),
    ("<think>I was cut</think><action>Go to Shelf 12345", "hink><action>go to shelf 12345", False),
    ("<think>a</think>go to shelf 1</action>", "</think>go to shelf 1</action>", False),
    ("look", "look", False),
    ("", "", False),
])
def test_answers_are_read_by_the_pipelines_rule(text, action, valid):
    parsed = read_lowered(text)
    assert (parsed.action, parsed.valid) == (action, valid)


def test_an_answer_keeps_its_case_and_tags_have_any():
    written = read_answer("<think>a</think><ACTION> Write File README.md </Action>")
    assert (written.action, written.valid) == ("Write File README.md", True)
    assert read_answer("\u0130 no tag: README.md", tail=9).action == "README.md"
    assert read_answer("\u0130<think>a</think><action>Ab</action>").action == "Ab"


def test_templates_are_found_by_name_and_share_the_parser():
    for name in ("full", "compact"):
        template = make_template(EnvSection(prompt=name))
        assert template.name == name
        assert template.parse("<think>a</think><action>Look</action>").action == "look"
    with pytest.raises(UserError, match="alfworld has no prompt 'long'"):
        make_template(EnvSection(prompt="long"))


START = Outcome(observation="A room.\n\nYour task is to: put a mug in shelf.",
                admissible_actions=["go to shelf 1", "help", "look"])
PLAN = "<planning>step 1: find a mug</planning><action>look</action>"


def turn(answer, *, action="look", admissible=True):
    return Turn(observation="seen", action=action, admissible=admissible, kept=answer)


def test_the_full_prompt_shows_answers_and_plan_after_the_first_turn():
    template = AlfworldMetaTemplate(history=1)
    assert "Your plan" not in template.render(START, [], START)
    text = template.render(START, [turn(PLAN)] * 4, START)
    assert "most recent 1 observations" in text
    assert text.count(f"answer: '{PLAN}'") == 3
    assert "[Observation 2: 'seen', answer: " in text
    assert "Your plan so far is: step 1: find a mug Keep to it." in text
    assert "Your task is to: put a mug in shelf." in text
    assert all(f"<{tag}> </{tag}>" in text for tag in REASONING_TAGS)


def test_the_compact_prompt_has_a_line_for_the_plan():
    template = AlfworldCompactMetaTemplate()
    assert template.render(START, [], START).endswith("\nPlan: -\n")
    assert template.render(START, [turn(PLAN)], START).endswith("\nPlan: step 1: find a mug\n")


def test_a_scripted_answer_gets_the_tag_of_its_situation():
    rewrite = AlfworldCompactMetaTemplate().rewrite
    answer = "<think>find mug</think><action>go to shelf 1</action>"
    end = "<action>go to shelf 1</action>"
    assert rewrite(answer, START, []) == f"<planning>find mug, then put a mug in shelf</planning>{end}"
    assert rewrite(answer, START, [turn("")]) == f"<explore>find mug</explore>{end}"
    assert rewrite(answer, START, [turn("", action="go to shelf 1")]) == f"<monitor>find mug</monitor>{end}"
    failed = turn("", action="take mug 1 from shelf 1", admissible=False)
    assert rewrite(answer, START, [failed]) == (
        f"<reflection>take mug 1 from shelf 1 failed, find mug</reflection>{end}")


def test_demonstrations_are_valid_answers_and_begin_with_a_plan(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    environment = open_environment(EnvSection())
    template = make_template(EnvSection(prompt="compact-meta"))
    task = environment.tasks(environment.training_splits()[0])[0]
    steps = demonstrate(environment, task, teacher=SPEC.teacher, template=template, seed=0, sft=SftSection(),
                        max_steps=30).steps
    answers = [template.parse(step.response_text) for step in steps]
    assert all(one.valid for one in answers)
    assert answers[0].tag == "planning"
    assert "explore" in {one.tag for one in answers}
    assert "Plan: find " in steps[1].prompt_text
