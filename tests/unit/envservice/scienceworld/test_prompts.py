"""Prompts of ScienceWorld, character by character."""

from __future__ import annotations

import json

from envservice.base import Outcome, Turn
from envservice.registry import make_template
from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.prompts import (
    MEANINGS,
    UNKNOWN,
    ScienceworldCompactMetaTemplate,
    ScienceworldCompactTemplate,
    ScienceworldFullTemplate,
    ScienceworldMetaTemplate,
)
from envservice.scienceworld.simulator import Simulator
from envservice.scienceworld.teacher import TEACHER
from envservice.text.response_format import REASONING_TAGS
from rollout.demonstrations import demonstrate
from services.config.tree import EnvSection, SftSection

TASK = "Your task is to find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen."
ROOM = (
    "This room is called the hallway. In it, you see: \n\tthe agent\n\ta substance called air\n\ta picture\n"
    "You also see:\n\tA door to the greenhouse (that is open)")
INFO = {"task": TASK, "objects": "agent; air; picture"}
KINDS = ["focus on <object>", "look around"]
FIRST = Outcome(observation=f"{TASK}\n\n{ROOM}", admissible_actions=KINDS, info=INFO)
THERE = Outcome(
    observation="You move to the greenhouse.", admissible_actions=KINDS, info={**INFO, "objects": "bee hive; sink"})
LOST = Outcome(observation=UNKNOWN, admissible_actions=KINDS, info=THERE.info)
GO = Turn(observation=FIRST.observation, action="go to greenhouse", admissible=True)
MISS = Turn(observation=THERE.observation, action="focus on plant", admissible=False)
ROLE = (
    "You are an expert agent operating in the ScienceWorld environment, which is a text-based virtual environment "
    "centered around accomplishing tasks from the elementary science curriculum.\n"
    "Your task is to: find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen.\n")
_KINDS = [{"action": action, "description": meaning} for action, meaning in MEANINGS.items()]
OFFER = f"Here are the actions you may take: {json.dumps(_KINDS)}"
INSTRUCTION = (
    "It is your turn to act.\n"
    "First reason step by step about the current situation; this reasoning MUST be enclosed within <think> </think> "
    "tags.\n"
    "Then give one action, in the form of one of the above, within <action> </action> tags.")


def test_full_first_step_has_no_history_and_says_the_task_once():
    assert ScienceworldFullTemplate().render(FIRST, [], FIRST) == (
        f"{ROLE}Your current observation is: {ROOM}\n{OFFER}\nObjects that you can refer to: agent; air; picture\n\n"
        f"{INSTRUCTION}")


def test_the_full_prompt_shows_the_latest_turns():
    assert ScienceworldFullTemplate(history=1).render(FIRST, [GO, MISS], LOST) == (
        f"{ROLE}Prior to this step, you have already taken 2 step(s). Below are the most recent 1 observations and the "
        "corresponding actions you took: [Observation 2: 'You move to the greenhouse.', Action 2: 'focus on plant']\n"
        f"You are now at step 3.\nYour current observation is: {UNKNOWN}\n{OFFER}\n"
        f"Objects that you can refer to: bee hive; sink\n\n{INSTRUCTION}")
    longer = ScienceworldFullTemplate(history=2).render(FIRST, [GO, MISS], LOST)
    assert f"[Observation 1: '{ROOM}', Action 1: 'go to greenhouse']\n[Observation 2: " in longer


def test_full_lists_every_valid_action_where_the_environment_does():
    now = Outcome(observation=ROOM, admissible_actions=["look around", "open door to kitchen"], info=INFO)
    assert ScienceworldFullTemplate(history=0).render(FIRST, [GO], now) == (
        f"{ROLE}Your current observation is: {ROOM}\n"
        "Your admissible actions of the current situation are: ['look around'\n 'open door to kitchen'].\n\n"
        f"{INSTRUCTION}")


def test_compact_says_what_was_done_and_what_failed():
    assert ScienceworldCompactTemplate().render(FIRST, [], FIRST) == (
        "Task: find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen.\nDone: -\n"
        "Now: This room is called the hallway. In it, you see: the agent; a substance called air; a picture; "
        "You also see: A door to the greenhouse (that is open)\nHere: agent; air; picture\n")
    task = "Task: find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen."
    assert ScienceworldCompactTemplate().render(FIRST, [GO, MISS], LOST) == (
        f"{task}\nDone: go to greenhouse; focus on plant failed\nNow: {UNKNOWN}\nHere: bee hive; sink\n")
    assert "Done: focus on plant failed\n" in ScienceworldCompactTemplate(history=1).render(FIRST, [GO, MISS], LOST)
    assert "Done: -\n" in ScienceworldCompactTemplate(history=0).render(FIRST, [GO, MISS], LOST)


def test_the_list_of_kinds_is_the_simulators(simulator: Simulator):
    """The family's list lacks teleports and the reset, and says `into` and `go to`, which the simulator takes too."""
    listed = {kind.partition(" [on")[0].replace("go to LOC", "go OBJ").replace(" into ", " in ") for kind in MEANINGS}
    simulator.load("boil", 0, "")
    templates = {kind.replace("<object>", "OBJ") for kind in simulator.templates()}
    assert len(MEANINGS) == 25
    assert templates - listed == {"reset task", "use OBJ on OBJ"}
    assert listed - templates == {"use OBJ"}
    for action in ("go to kitchen", "look at door to kitchen", "use thermometer"):
        assert simulator.step(action)


def test_the_compact_prompt_is_the_configs_choice():
    template = make_template(EnvSection(name="scienceworld", prompt="compact", history=3))
    assert isinstance(template, ScienceworldCompactTemplate)
    assert template.history == 3
    assert template.parse("<think>go on</think><action>Go to Kitchen</action>").action == "go to kitchen"


HERE = {"task": TASK, "objects": "agent; air"}
START = Outcome(observation=f"{TASK}\n\nA hallway.", admissible_actions=["look around"], info=HERE)
NOW = Outcome(observation="A kitchen.", admissible_actions=["look around"], info=HERE)
PLAN = "<planning>find the plant</planning><action>go to kitchen</action>"
PLANNED = Turn(observation=START.observation, action="go to kitchen", admissible=True, kept=PLAN)


def test_the_full_prompt_is_the_untagged_one_with_answers_and_plan_after_the_first_turn():
    """Both differ in the instruction alone at the first turn."""
    template, untagged = ScienceworldMetaTemplate(history=1), ScienceworldFullTemplate(history=1)
    head, _, instruction = template.render(START, [], START).partition("It is your turn to act.\n")
    assert head == untagged.render(START, [], START).partition("It is your turn to act.\n")[0]
    assert all(f"<{tag}> </{tag}>" in instruction for tag in REASONING_TAGS)
    assert "'No known action matches that input.' means that an action failed." in instruction
    later = template.render(START, [PLANNED], NOW)
    assert ("Action 1: 'go to kitchen']\nYour latest answers were:\n"
            f"[Observation 1: 'A hallway.', answer: '{PLAN}']\nYou are now at step 2.\n") in later
    plan = "Your plan so far is: find the plant Keep to it."
    assert later.endswith(f"\n\n{plan}\n\nIt is your turn to act.\n{instruction}")


def test_the_compact_prompt_has_a_line_for_the_plan():
    template = make_template(EnvSection(name="scienceworld", prompt="compact-meta"))
    assert isinstance(template, ScienceworldCompactMetaTemplate)
    assert template.render(START, [], START).endswith("\nHere: agent; air\nPlan: -\n")
    assert template.render(START, [PLANNED], NOW).endswith("\nHere: agent; air\nPlan: find the plant\n")


def test_the_plan_of_a_gold_path_names_the_first_sentence_of_the_task():
    answer = "<think>go on</think><action>go to kitchen</action>"
    assert ScienceworldMetaTemplate().rewrite(answer, START, []) == (
        "<planning>go on, then find a(n) plant</planning><action>go to kitchen</action>")


def test_demonstrations_win_with_valid_tagged_answers(environment: ScienceworldEnvironment):
    """A gold path never fails, so none of them reflects, and noise is not mistaken for a failure."""
    template = ScienceworldCompactMetaTemplate()
    shown = demonstrate(environment, "scienceworld/train/find-non-living-thing/0", teacher=TEACHER, template=template,
                        seed=0, sft=SftSection(noise=0.4), max_steps=60)
    answers = [template.parse(step.response_text) for step in shown.steps]
    assert shown.won
    assert all(one.valid for one in answers)
    assert answers[0].tag == "planning"
    assert {one.tag for one in answers[1:]} == {"explore", "monitor"}
