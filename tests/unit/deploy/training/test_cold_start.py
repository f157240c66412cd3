"""The examples that a demonstration gives to the cold start."""

import pytest

from deploy.training.cold_start import _examples
from envservice.registry import make_template
from rollout.demonstrations import Demonstration, DemoStep
from services.config.tree import EnvSection


def demonstration(*, won: bool) -> Demonstration:
    return Demonstration("a task", won=won, steps=[
        DemoStep("prompt one\n", "take mug 1</action>", "take mug 1", train=True, judged=("open fridge 1", False)),
        DemoStep("prompt two\n", "go to desk 1</action>", "look", train=False, judged=("go to desk 1", True)),
        DemoStep("prompt three\n", "use lamp 1</action>", "use lamp 1", train=True)])


def test_a_won_demonstration_shows_its_own_actions_and_then_its_judgements():
    """A step whose executed action is noise shows no action, but may show a judgement of the player's."""
    found = _examples(demonstration(won=True), make_template(EnvSection(prompt="compact")), ["</action>"])
    assert [(one.prompt, one.response) for one in found] == [
        ("prompt one\n", "take mug 1</action>"),
        ("prompt three\n", "use lamp 1</action>"),
        ("prompt one\nJudge: open fridge 1\n", "<action>bad</action>"),
        ("prompt two\nJudge: go to desk 1\n", "<action>good</action>")]


@pytest.mark.parametrize("prompt", ["compact", "full"])
def test_a_lost_demonstration_shows_nothing(prompt):
    assert _examples(demonstration(won=False), make_template(EnvSection(prompt=prompt)), ["</action>"]) == []
