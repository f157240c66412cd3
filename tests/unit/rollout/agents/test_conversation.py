"""Conversations with tools are one sequence with credit for each call. Tokens decide what continues a call."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from byte_tokenizer import TEMPLATE, byte_tokenizer
from scripted_engine import ScriptedEngine
from third_party import TOKENIZERS

from envservice.text.plain_prompts import PLAIN
from learner.rows.batch import assign_credit, rows_of
from rollout.agents import session
from rollout.agents.conversation import agent
from rollout.agents.session import AgentSession, EpisodeOver, continued_step, without_step
from rollout.prompt_renderer import PromptRenderer, load_text
from services.config.tree import CreditSection, EnvSection
from services.errors import EnvFault
from services.records import Step, decode_episode, encode_episode


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


SCRIPT = [call("add", n=2), call("halve"), "I think", f"Twice. {call('double')}"]


async def test_tools_are_shown_called_and_answered_in_one_conversation(counting, ticket, text):
    async with counting(SCRIPT, agent) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (episode.won, episode.end, len(episode.steps)) == (True, "won", 4)
    assert [step.reward for step in episode.steps] == [2.5, 0.0, 0.0, 12.5]
    assert [step.observation for step in episode.steps] == [
        "The counter is 1. Make it 6.", "3", "There is no halve with [].", "Call a tool."]
    assert episode.steps[0].action == '{"name":"add","arguments":{"n":2}}'
    read = text.tokenizer.decode(episode.steps[-1].prompt_ids.tolist())
    assert read.startswith('[tools][{"type": "function", "function": {"name": "add"')
    assert read.endswith(
        f"[user]The counter is 1. Make it 6.<|end|>[assistant]{SCRIPT[0]}<|end|>[tool]3<|end|>[assistant]{SCRIPT[1]}"
        "<|end|>[tool]There is no halve with [].<|end|>[assistant]I think<|end|>[user]Call a tool.<|end|>[assistant]")
    assert [step.follows for step in episode.steps] == [None, 0, 1, 2]
    assert not any(step.broke for step in episode.steps)


@pytest.mark.parametrize(("opened", "script"), [
    ("", "<think>\nhm\n</think>\n\ngo"), ("<think>\n", "hm\n</think>\n\ngo"), ("<think>\n\n</think>\n\n", "go")])
async def test_an_action_lacks_the_thought_that_the_history_keeps(counting, ticket, opened: str, script: str):
    """Whether the model writes the thought or the template opens it, as Qwen3's does if the model shall not think."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("[assistant]{% endif %}", f"[assistant]{opened}{{% endif %}}")
    thinking = PromptRenderer(template=PLAIN["full"](2), tokenizer=tokenizer)
    async with counting([], agent) as (runner, _):
        engine = ScriptedEngine(thinking, [script, call("add", n=5)])
        episode = await dataclasses.replace(runner, text=thinking, engine=engine).play(ticket, 1)
    assert (episode.steps[0].action, episode.won) == ("go", True)
    assert f"[assistant]{opened}{script}<|end|>" in tokenizer.decode(episode.steps[1].prompt_ids.tolist())


async def test_a_conversation_trains_as_one_sequence_with_the_credit_of_each_call(counting, ticket):
    async with counting(SCRIPT, agent) as (runner, _):
        episode = await runner.play(ticket, 1)
    groups = [[episode]]
    credits = assign_credit(groups, CreditSection(normalize="none"))
    rows = rows_of(groups, credits, policy_step=0)
    assert rows.lengths.tolist() == [len(rows.tokens)]
    assert rows.advantages.tolist() == credits[0].advantages[0]
    for step, start, size in zip(episode.steps, rows.prompt_lengths, rows.response_lengths, strict=True):
        assert rows.tokens[:start].tolist() == step.prompt_ids.tolist()
        assert rows.tokens[start:start + size].tolist() == step.response_ids.tolist()
    assert np.array_equal(rows.sampler_logprobs, np.concatenate([step.logprobs for step in episode.steps]))


async def test_a_recorded_session_played_again_gives_the_same_rows(counting, ticket):
    """The record has gone through its stored form. Its answers, given again, lead to the same tokens and credit."""
    async with counting(SCRIPT, agent) as (runner, _):
        recorded = decode_episode(encode_episode(await runner.play(ticket, 1)))
    async with counting([step.response_ids[:-1].tolist() for step in recorded.steps], agent) as (runner, _):
        again = await runner.play(ticket, 1)
    one, other = (rows_of([[episode]], assign_credit([[episode]], CreditSection(normalize="none")), policy_step=0)
                  for episode in (recorded, again))
    for field in dataclasses.fields(one):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    assert [step.observation for step in recorded.steps] == [step.observation for step in again.steps]


async def test_a_lost_session_is_rebuilt_from_its_calls(counting, ticket):
    async def forgetful(task, llm, env):
        now = await env.reset()
        for name, arguments in (("add", {"n": 2}), ("double", {})):
            await llm.chat([{"role": "user", "content": now.observation}], tools=env.tools)
            sessions.drop_all()
            now = await env.call(name, arguments)

    async with counting(["", ""], forgetful) as (runner, sessions):
        episode = await runner.play(ticket, 1)
    assert (episode.won, episode.replays, episode.total_reward) == (True, 2, 15.0)


async def test_a_lost_live_session_is_a_fault_and_no_reward(counting, ticket):
    async def unlucky(task, llm, env):
        now = await env.reset()
        await llm.chat([{"role": "user", "content": now.observation}])
        sessions.drop_all()
        try:
            await env.call("double", {})
        except EnvFault:
            llm.earn(1.0)

    async with counting([""], unlucky, replayable=False) as (runner, sessions):
        with pytest.raises(EnvFault, match="session_lost"):
            await runner.play(ticket, 1)


async def test_a_game_that_reached_its_own_limit_was_cut(counting, ticket):
    """The counter gives up beyond 99. At 9, more than it wants, the game is lost."""
    for n, end in ((99, "turns"), (8, "lost")):
        async with counting([call("add", n=n)], agent) as (runner, _):
            episode = await runner.play(ticket, 1)
        assert (episode.end, episode.won, len(episode.steps)) == (end, False, 1)


async def test_an_edited_history_starts_a_row_of_its_own_and_is_counted(counting, ticket):
    """A thought that is taken out of the history, as some templates do; then a new conversation, which is no break."""
    async def edits(task, llm, env):
        first = {"role": "user", "content": "hello"}
        answer = await llm.chat([first])
        await llm.chat([first, {"role": "assistant", "content": answer.text.removeprefix("so ")}, first])
        await llm.chat([{"role": "user", "content": "another"}])
        llm.earn(1.0)

    async with counting(["so I greet", "b", "c"], edits) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert [(step.follows, step.broke) for step in episode.steps] == [(None, False), (None, True), (None, False)]


MISTRALS = ['[TOOL_CALLS][{"name": "add", "arguments": {"n": 1}, "id": "0a1b2c3d4"}]',
            '[TOOL_CALLS][{"name": "add", "arguments": {"n": 1}, "id": "0a1b2c3d5"}]',
            '[TOOL_CALLS][{"name": "double", "arguments": {}, "id": "0a1b2c3d6"}]']


@pytest.mark.skipif("mistral_nemo" not in TOKENIZERS, reason="scripts/setup --test has not fetched it by npm")
async def test_mistrals_template_takes_the_results_of_tools(counting, ticket):
    """It counts messages, and refused the second result after calls that were told as text."""
    text = load_text(str(TOKENIZERS["mistral_nemo"]), EnvSection(name="counter:SPEC"))
    async with counting([], agent) as (runner, _):
        mistral = dataclasses.replace(runner, text=text, engine=ScriptedEngine(text, MISTRALS))
        episode = await mistral.play(ticket, 1)
    assert (episode.won, len(episode.steps)) == (True, 3)
    assert [step.follows for step in episode.steps] == [None, 0, 1]


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
