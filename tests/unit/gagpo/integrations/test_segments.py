"""The steps of an episode that a trainer keeps as one sequence of tokens."""

import dataclasses

import numpy as np
import pytest

from gagpo.integrations.segments import Sequenced, episode_of, gaps, observed, segments
from services.errors import UserError
from services.records import Ticket, Version

TICKET = Ticket(group="train/00000001/0000", k=1, size=2, task="t", seed=0, kind="train", temperature=1.0, max_steps=9)
VERSION = Version(incarnation=1, step=0)
PLAYED = Sequenced(prompt=[7, 8], completion=[1, 2, 3, 4, 5, 6], mask=[1, 1, 0, 0, 1, 0], observations=["A", "B", "C"],
                   actions=["x", "y"], logprobs=[-1.0, None, 0, 0, -2.0, 0])


@pytest.mark.parametrize(("mask", "expected", "between"), [
    ([1, 1, 1], [(0, 3)], []),
    ([1, 1, 0, 0, 1, 0, 1], [(0, 2), (4, 5), (6, 7)], [(2, 4), (5, 6)]),
    ([0, 1, 0], [(1, 2)], []),
    ([0, 0], [], []),
])
def test_a_step_is_a_run_of_sampled_tokens(mask: list[int], expected: list[tuple[int, int]], between: list):
    assert segments(mask) == expected
    assert gaps(expected) == between


def test_the_model_reads_the_prompt_and_then_the_results_of_its_tools():
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
    call, end = {"role": "assistant", "content": ""}, {"role": "assistant", "content": "done"}
    tools = [{"role": "tool", "name": "go", "content": text} for text in ("1", "1")]
    assert observed(prompt, [call, *tools, call, tools[0], end]) == ["S\nU", "1\n1", "1", ""]
    assert observed("text", "answer") == ["text"]


def test_an_episode_has_the_tokens_of_each_step_and_its_reward_in_the_last():
    episode = episode_of(PLAYED, TICKET, VERSION, 3.0)
    first, second = episode.steps
    assert (first.observation, first.action, first.state, first.reward) == ("A", "x", "", 0.0)
    assert (second.observation, second.action, second.reward, episode.won) == ("B", "y", 3.0, True)
    assert first.prompt_ids.tolist() == [7, 8]
    assert first.response_ids.tolist() == [1, 2]
    assert second.prompt_ids.tolist() == [7, 8, 1, 2, 3, 4]
    assert second.response_ids.tolist() == [5]
    np.testing.assert_array_equal(first.logprobs, np.float32([-1, np.nan]))


def test_the_environments_own_state_takes_the_place_of_the_observation():
    one = episode_of(dataclasses.replace(PLAYED, states=["s0", "s1"]), TICKET, VERSION, 0.0)
    assert [(step.observation, step.state) for step in one.steps] == [("s0", "s0"), ("s1", "s1")]


@pytest.mark.parametrize(("changes", "message"), [
    ({"states": ["s0"]}, "episode 1 of train/00000001/0000 has 2 steps and 1 states; give the state before each step"),
    ({"states": ["s0", 3]}, "a state of episode 1 of train/00000001/0000 is 3, which is no text"),
    ({"mask": [0] * 6}, "the model sampled no token of episode 1 of train/00000001/0000"),
])
def test_a_mistake_in_states_or_mask_is_named(changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        episode_of(dataclasses.replace(PLAYED, **changes), TICKET, VERSION, 0.0)
