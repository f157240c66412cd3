"""ScienceWorld's prompts with tagged reasoning, and the form of their demonstrations."""

from envservice.base import Outcome, Turn
from envservice.registry import make_template
from envservice.scienceworld.environment import ScienceworldEnvironment
from envservice.scienceworld.meta_prompt import ScienceworldCompactMetaTemplate, ScienceworldMetaTemplate
from envservice.scienceworld.prompts import ScienceworldFullTemplate
from envservice.scienceworld.spec import TEACHER
from envservice.text.meta_answers import TAGS
from rollout.demonstrations import demonstrate
from services.config.tree import EnvSection, SftSection

TASK = "Your task is to find a(n) plant. First, focus on the thing. Then, move it to the red box in the kitchen."
INFO = {"task": TASK, "objects": "agent; air"}
FIRST = Outcome(observation=f"{TASK}\n\nA hallway.", admissible_actions=["look around"], info=INFO)
NOW = Outcome(observation="A kitchen.", admissible_actions=["look around"], info=INFO)
PLAN = "<planning>find the plant</planning><action>go to kitchen</action>"
GO = Turn(observation=FIRST.observation, action="go to kitchen", admissible=True, kept=PLAN)


def test_the_full_prompt_is_the_untagged_one_with_answers_and_plan_after_the_first_turn():
    """Both differ in the instruction alone at the first turn."""
    template, untagged = ScienceworldMetaTemplate(history=1), ScienceworldFullTemplate(history=1)
    head, _, instruction = template.render(FIRST, [], FIRST).partition("It is your turn to act.\n")
    assert head == untagged.render(FIRST, [], FIRST).partition("It is your turn to act.\n")[0]
    assert all(f"<{tag}> </{tag}>" in instruction for tag in TAGS)
    assert "'No known action matches that input.' means that an action failed." in instruction
    later = template.render(FIRST, [GO], NOW)
    assert ("Action 1: 'go to kitchen']\nYour latest answers were:\n"
            f"[Observation 1: 'A hallway.', answer: '{PLAN}']\nYou are now at step 2.\n") in later
    plan = "Your plan so far is: find the plant Keep to it."
    assert later.endswith(f"\n\n{plan}\n\nIt is your turn to act.\n{instruction}")


def test_the_compact_prompt_has_a_line_for_the_plan():
    template = make_template(EnvSection(name="scienceworld", prompt="compact-meta"))
    assert isinstance(template, ScienceworldCompactMetaTemplate)
    assert template.render(FIRST, [], FIRST).endswith("\nHere: agent; air\nPlan: -\n")
    assert template.render(FIRST, [GO], NOW).endswith("\nHere: agent; air\nPlan: find the plant\n")


def test_the_plan_of_a_gold_path_names_the_first_sentence_of_the_task():
    answer = "<think>go on</think><action>go to kitchen</action>"
    assert ScienceworldMetaTemplate().rewrite(answer, FIRST, []) == (
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
