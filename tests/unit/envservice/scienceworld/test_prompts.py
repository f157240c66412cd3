"""Prompts of ScienceWorld, character by character."""

import json

from envservice.base import Outcome, Turn
from envservice.registry import make_template
from envservice.scienceworld.prompts import MEANINGS, UNKNOWN, ScienceworldCompactTemplate, ScienceworldFullTemplate
from envservice.scienceworld.simulator import Simulator
from services.config.tree import EnvSection

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
    known = {kind.replace("<object>", "OBJ") for kind in simulator.templates()}
    assert len(MEANINGS) == 25
    assert known - listed == {"reset task", "use OBJ on OBJ"}
    assert listed - known == {"use OBJ"}
    for action in ("go to kitchen", "look at door to kitchen", "use thermometer"):
        assert simulator.step(action)


def test_the_compact_prompt_is_the_configs_choice():
    template = make_template(EnvSection(name="scienceworld", prompt="compact", history=3))
    assert isinstance(template, ScienceworldCompactTemplate)
    assert template.history == 3
    assert template.parse("<think>go on</think><action>Go to Kitchen</action>").action == "go to kitchen"
