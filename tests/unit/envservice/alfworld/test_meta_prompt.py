"""ALFWorld's prompts with tagged reasoning, and the form of their demonstrations."""

from envservice.alfworld.meta_prompt import AlfworldCompactMetaTemplate, AlfworldMetaTemplate
from envservice.alfworld.spec import SPEC
from envservice.base import Outcome, Turn
from envservice.registry import make_template, open_environment
from envservice.text.meta_answers import TAGS
from rollout.demonstrations import demonstrate
from services.config.tree import EnvSection, SftSection

FIRST = Outcome(observation="A room.\n\nYour task is to: put a mug in shelf.",
                admissible_actions=["go to shelf 1", "help", "look"])
PLAN = "<planning>step 1: find a mug</planning><action>look</action>"


def turn(answer, *, action="look", admissible=True):
    return Turn(observation="seen", action=action, admissible=admissible, kept=answer)


def test_the_full_prompt_shows_answers_and_plan_after_the_first_turn():
    template = AlfworldMetaTemplate(history=1)
    assert "Your plan" not in template.render(FIRST, [], FIRST)
    text = template.render(FIRST, [turn(PLAN)] * 4, FIRST)
    assert "most recent 1 observations" in text
    assert text.count(f"answer: '{PLAN}'") == 3
    assert "[Observation 2: 'seen', answer: " in text
    assert "Your plan so far is: step 1: find a mug Keep to it." in text
    assert "Your task is to: put a mug in shelf." in text
    assert all(f"<{tag}> </{tag}>" in text for tag in TAGS)


def test_the_compact_prompt_has_a_line_for_the_plan():
    template = AlfworldCompactMetaTemplate()
    assert template.render(FIRST, [], FIRST).endswith("\nPlan: -\n")
    assert template.render(FIRST, [turn(PLAN)], FIRST).endswith("\nPlan: step 1: find a mug\n")


def test_a_scripted_answer_gets_the_tag_of_its_situation():
    rewrite = AlfworldCompactMetaTemplate().rewrite
    answer = "<think>find mug</think><action>go to shelf 1</action>"
    end = "<action>go to shelf 1</action>"
    assert rewrite(answer, FIRST, []) == f"<planning>find mug, then put a mug in shelf</planning>{end}"
    assert rewrite(answer, FIRST, [turn("")]) == f"<explore>find mug</explore>{end}"
    assert rewrite(answer, FIRST, [turn("", action="go to shelf 1")]) == f"<monitor>find mug</monitor>{end}"
    failed = turn("", action="take mug 1 from shelf 1", admissible=False)
    assert rewrite(answer, FIRST, [failed]) == (
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
