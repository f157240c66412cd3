"""The prompts for any environment of text, to the letter."""

import pytest

from envservice.base import Outcome, Turn
from envservice.text.plain_prompts import PLAIN

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
