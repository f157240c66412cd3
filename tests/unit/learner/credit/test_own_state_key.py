"""Mistakes of a state key of the user's own, each told in one line."""

import numpy as np
import pytest

from learner.credit.registry import make_options
from learner.credit.state_keys import Keys, NoOptions, keys_of_group
from services.errors import UserError
from services.records import Episode, Step, Ticket

PLAYED = Episode(
    ticket=Ticket(group="train/1", k=0, size=1, task="t", seed=0, kind="train", temperature=1.0, max_steps=9),
    steps=[Step(observation="A", prompt_ids=np.zeros(1, np.int32), response_ids=np.zeros(1, np.int32),
                logprobs=np.zeros(1, np.float32), spans=[], action="go", valid=True, admissible=True, reward=0.0)],
    won=False, end="lost", worker="w", attempt=1, seconds=0.0, engine="e")


class Numbers:
    """Keys that are no texts, which the archive could not hold after the first step."""

    Options = NoOptions
    knows_cuts = False

    def keys(self, group, options):
        return Keys(steps=[[len(step.observation) for step in one.steps] for one in group], cut_in=[None] * len(group))


class NoModel(Numbers):
    """Options that are none."""

    Options = dict


def test_a_key_that_is_no_text_is_named():
    with pytest.raises(UserError, match=r"the state key .*Numbers returned 1, which is no text"):
        keys_of_group([PLAYED], make_options(state_key=f"{__name__}:Numbers"))


def test_options_that_are_no_model_are_named():
    with pytest.raises(UserError, match=r"NoModel\.Options is no options model; make it a subclass of pydantic"):
        make_options(state_key=f"{__name__}:NoModel")
