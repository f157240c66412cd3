"""Tokens alone decide which call continues which. A long prompt is read in a thread, or refused before it is read."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_engine import ScriptedEngine

from rollout.agents import session
from rollout.agents.session import AgentSession, EpisodeOver, continued_step, without_step
from services.records import Step


def step(prompt, answer, **named):
    return Step(observation="", prompt_ids=np.array(prompt, np.int32), response_ids=np.array(answer, np.int32),
                logprobs=np.zeros(len(answer), np.float32), spans=[], action="", valid=True, admissible=True,
                reward=0.0, **named)


def after(steps, prompt):
    return continued_step(steps, np.array(prompt, np.int32))


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
    assert [each.follows for each in without_step(steps, 0)] == [None, None, 0]
    assert [each.broke for each in without_step(steps, 0)] == [False, True, False]
    assert [each.follows for each in without_step(steps, 2)] == [None, None, 1]


def asked(text, ticket, *, prompt_tokens):
    return AgentSession(ticket=ticket, engine=ScriptedEngine(text, ["so"]), text=text, prompt_tokens=prompt_tokens,
                        response_tokens=8, max_calls=2)


def conversation_of(length: int):
    return [{"role": "user", "content": "x" * length}]


async def test_a_prompt_that_is_read_in_a_thread_has_the_same_tokens(text, ticket, monkeypatch):
    monkeypatch.setattr(session, "QUICK_TEXT", 100)
    llm = asked(text, ticket, prompt_tokens=1000)
    await llm.chat(conversation_of(500))
    ((prompt, _),) = llm.engine.asked
    assert prompt == text.tokenizer.encode(text.chat.text(conversation_of(500)), add_special_tokens=False)


@pytest.mark.parametrize(("length", "size"), [(100, "118 tokens"), (1000, "1024 characters")])
async def test_a_prompt_that_cannot_fit_ends_the_episode(text, ticket, length, size, monkeypatch):
    """The longest token has 7 characters. More than 7 for each of 90 tokens are refused before they are read."""
    assert text.longest_token == len("<|end|>") == 7
    llm = asked(text, ticket, prompt_tokens=90)
    with pytest.raises(EpisodeOver, match=rf"the prompt has {size}, .* is 90 tokens \(rollout\.max_p") as over:
        await llm.chat(conversation_of(length))
    assert over.value.end == "context"
    assert not llm.steps
