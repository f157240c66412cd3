"""ALFWorld's noise: half of it admissible, half of it names a number that is not there."""

import random

from envservice.alfworld.teacher import disturb
from envservice.base import Outcome


def test_disturbed_actions_are_half_admissible_half_not():
    now = Outcome(observation="", admissible_actions=["go to bed 1", "go to desk 1", "help", "look"])
    rng = random.Random(0)
    drawn = [disturb("go to bed 1", now, rng) for _ in range(400)]
    admissible = [action for action in drawn if action in now.admissible_actions]
    assert 150 <= len(admissible) <= 250
    assert set(admissible) == {"go to bed 1", "go to desk 1", "look"}
    assert all(action.startswith("go to bed ") for action in drawn if action not in now.admissible_actions)
    assert all(disturb("look", now, rng) for _ in range(20))
