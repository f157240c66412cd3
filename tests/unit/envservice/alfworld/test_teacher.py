"""ALFWorld's noise: a third admissible, a third with a number that is not there, a third in vain."""

import random
from collections import Counter

from envservice.alfworld.teacher import disturb
from envservice.base import Outcome

FIRST = Outcome(
    observation="-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.\n\n"
                "Your task is to: put a clean mug in desk.",
    admissible_actions=["go to bed 1", "go to desk 1", "go to desk 2", "help", "inventory", "look"])
AT_DESK = Outcome(
    observation="You arrive at desk 1. On the desk 1, you see a mug 2, and a pen 1.",
    admissible_actions=["go to bed 1", "go to desk 2", "help", "look", "take mug 2 from desk 1",
                        "take pen 1 from desk 1"])


def drawn(now: Outcome, action: str, times: int = 900) -> Counter[str]:
    rng = random.Random(0)
    return Counter(disturb(action, FIRST, now, rng) for _ in range(times))


def test_before_the_first_move_nothing_is_in_vain():
    seen = drawn(FIRST, "go to bed 1")
    admissible = {action for action in seen if action in FIRST.admissible_actions}
    assert admissible == set(FIRST.admissible_actions) - {"help"}
    assert 240 <= sum(seen[action] for action in admissible) <= 360
    assert all(action.startswith("go to bed ") for action in seen if action not in FIRST.admissible_actions)


def test_in_vain_it_goes_where_it_stands_or_takes_what_is_not_there():
    """A third of 900, of which half goes to the desk and half takes a mug with a number from 1 to 6 other than 2."""
    seen = drawn(AT_DESK, "go to bed 1")
    takes = {action for action in seen if action.startswith("take mug") and action not in AT_DESK.admissible_actions}
    assert takes == {f"take mug {number} from desk 1" for number in (1, 3, 4, 5, 6)}
    assert 100 <= seen["go to desk 1"] <= 200
    assert 100 <= sum(seen[action] for action in takes) <= 200
    assert 240 <= sum(seen[action] for action in AT_DESK.admissible_actions) <= 360


def test_where_six_of_a_kind_stand_the_attempt_in_vain_is_to_go_there():
    """No take of a mug with a number from 1 to 6 fails there. The choice among none of them raised."""
    mugs = [f"take mug {number} from desk 1" for number in range(1, 7)]
    seen = drawn(Outcome(observation="", admissible_actions=["go to bed 1", "go to desk 2", *mugs]), "go to bed 1")
    assert 240 <= seen["go to desk 1"] <= 360


def test_an_action_without_a_number_is_disturbed_too():
    assert all(drawn(FIRST, "look", 20))
