"""A prompt of any length: read in a thread, or refused before it is read."""

import pytest
from scripted_engine import ScriptedEngine

from rollout.agents import session
from rollout.agents.session import AgentSession, EpisodeOver


def asked(text, ticket, *, prompt_tokens):
    return AgentSession(ticket=ticket, engine=ScriptedEngine(text, ["so"]), text=text, prompt_tokens=prompt_tokens,
                        response_tokens=8, max_calls=2)


def said(length: int):
    return [{"role": "user", "content": "x" * length}]


async def test_a_prompt_that_is_read_in_a_thread_has_the_same_tokens(text, ticket, monkeypatch):
    monkeypatch.setattr(session, "QUICK_TEXT", 100)
    llm = asked(text, ticket, prompt_tokens=1000)
    await llm.chat(said(500))
    ((prompt, _),) = llm.engine.asked
    assert prompt == text.tokenizer.encode(text.chat.text(said(500)), add_special_tokens=False)


@pytest.mark.parametrize(("length", "size"), [(100, "118 tokens"), (1000, "1024 characters")])
async def test_a_prompt_that_cannot_fit_ends_the_episode(text, ticket, length, size, monkeypatch):
    """The longest token has 7 characters. More than 7 for each of 90 tokens are refused before they are read."""
    assert text.longest_token == len("<|end|>") == 7
    llm = asked(text, ticket, prompt_tokens=90)
    with pytest.raises(EpisodeOver, match=rf"the prompt has {size}, .* is 90 tokens \(rollout\.max_p") as over:
        await llm.chat(said(length))
    assert over.value.end == "context"
    assert not llm.steps
