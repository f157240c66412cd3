"""Which call continues which is decided by tokens alone."""

from __future__ import annotations

import numpy as np

from rollout.agents.linked_steps import continued, without
from services.records import Step


def step(prompt, answer, **named):
    return Step(observation="", prompt_ids=np.array(prompt, np.int32), response_ids=np.array(answer, np.int32),
                logprobs=np.zeros(len(answer), np.float32), spans=[], action="", valid=True, admissible=True,
                reward=0.0, **named)


def after(steps, prompt):
    return continued(steps, np.array(prompt, np.int32))


def test_a_prompt_continues_the_newest_call_that_it_begins_with():
    steps = [step([1, 2], [3]), step([7], [8, 9]), step([1, 2, 3, 4], [5])]
    assert after(steps, [1, 2, 3, 4, 5, 6]) == 2
    assert after(steps, [1, 2, 3, 6]) == 0
    assert after(steps, [7, 8, 9]) == 1


def test_a_prompt_with_other_tokens_continues_no_earlier_step():
    """Another token in the answer (tokenised anew), in the prompt (edited), or an end that is missing."""
    steps = [step([1, 2], [3, 4])]
    for prompt in ([1, 2, 34, 5, 6], [1, 9, 3, 4, 5], [1, 2, 3], [], [2, 3, 4, 5]):
        assert after(steps, prompt) is None


def test_a_call_that_is_taken_back_leaves_the_links_of_the_others():
    steps = [step([1], [2]), step([5], [6]), step([1, 2, 3], [4], follows=0), step([5, 6, 7], [8], follows=1)]
    assert [each.follows for each in without(steps, 0)] == [None, None, 0]
    assert [each.broke for each in without(steps, 0)] == [False, True, False]
    assert [each.follows for each in without(steps, 2)] == [None, None, 1]
