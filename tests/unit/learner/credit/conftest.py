"""Episodes written as strings: one letter a state, `!` after it an invalid step, + a reward on the last step.

This folder is on the import path, so that its tests share oracle.py and random_groups.py.
"""

import sys
from pathlib import Path

import pytest

from learner.credit.types import CreditStep

sys.path.insert(0, str(Path(__file__).parent))


def parse(text, reward):
    body, sign = text[:-1], text[-1]
    steps = []
    for i, letter in enumerate(body):
        if letter != "!":
            steps.append({"state": letter, "reward": 0.0, "invalid": body[i + 1 : i + 2] == "!", "tokens": 1})
    steps[-1]["reward"] = reward if sign == "+" else 0.0
    return [CreditStep(**step) for step in steps]


@pytest.fixture
def group():
    def make(*texts, reward=1.0):
        return [parse(text, reward) for text in texts]

    return make
