"""Agents that do not end as they should."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys

import numpy as np
import pytest
import torch
from counter import counter_spec
from ports import likely_port

from envservice.client.client import EnvClient, EpisodeHandle
from envservice.server.app import Settings, create_app
from envservice.wire import MAX_ACTION
from rollout.agents import runner as runners
from rollout.agents.session import EpisodeOver
from services.config.env import EnvSection
from services.config.tree import AgentSection
from services.errors import AgentFault, EnvFault
from services.http.server import bind, serving_in_thread
from services.records import decode_episode, encode_episode


async def test_an_agent_that_catches_its_cancellation_is_left_to_itself(
    counting, ticket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runners, "CANCEL_S", 0.1)
    released, refused = asyncio.Event(), asyncio.Event()

    async def stubborn(_task, llm, _env):
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        with pytest.raises(EpisodeOver):
            await llm.chat([{"role": "user", "content": "7 plus 3"}])
        refused.set()

    async with counting(["10"], stubborn) as (runner, _):
        hasty = dataclasses.replace(runner, settings=AgentSection(name="x:y", seconds=0.1))
        playing = asyncio.create_task(hasty.play(ticket, 1))
        done, _ = await asyncio.wait({playing}, timeout=20)
        released.set()
        assert done
        with pytest.raises(AgentFault, match=r"^the agent did not end .* \(agent.seconds\), and still runs although"):
            await playing
        async with asyncio.timeout(20):
            await refused.wait()


@pytest.mark.parametrize(("added", "won"), [(1, False), (5, True)])
async def test_a_reset_gives_no_turns_back(counting, ticket, added, won):
    """Also not where each turn ends its game: then the last turn has not ended the episode."""
    taken = []

    async def starts_again(_task, llm, env):
        for _ in range(ticket.max_steps + 1):
            await env.reset()
            await llm.chat([{"role": "user", "content": "again"}])
            taken.append(await env.call("add", {"n": added}))

    async with counting(["so"] * (ticket.max_steps + 1), starts_again) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (len(taken), episode.end, episode.won) == (ticket.max_steps, "won" if won else "turns", won)


async def test_the_last_turn_ends_the_episode_although_a_call_beside_it_was_too_long(counting, ticket):
    """Such a call may be made again with a shorter prompt, so its end is lifted, and the agent played on without bound.
    """
    taken = []

    async def with_a_helper(_task, llm, env):
        await env.reset()

        async def helper():
            await asyncio.sleep(0)  # the step is on its way by now
            with contextlib.suppress(EpisodeOver):
                await llm.chat([{"role": "user", "content": "x" * 5000}])

        for turn in range(ticket.max_steps + 4):
            await llm.chat([{"role": "user", "content": "x"}])
            others = [helper()] if turn == ticket.max_steps - 1 else []
            await asyncio.gather(env.step("nonsense"), *others)
            taken.append(turn)

    async with counting(["so"] * 20, with_a_helper) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (len(taken), episode.end) == (ticket.max_steps, "turns")


async def test_calls_of_the_environment_that_overlap_are_made_one_after_the_other(counting, ticket):
    """Frameworks carry out the calls of one answer side by side. The server refused the second one, as it takes each
    turn once, and that fault of ours cost the episode an attempt."""
    seen = []

    async def at_once(_task, llm, env):
        await env.reset()
        await llm.chat([{"role": "user", "content": "add"}])
        seen.extend(await asyncio.gather(env.call("add", {"n": 1}), env.call("add", {"n": 2})))
        seen.append(await env.call("add", {"n": 2}))

    async with counting(["so"], at_once) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert [now.observation for now in seen] == ["2", "4", "6"]
    assert (episode.won, episode.total_reward) == (True, 17.5)


async def test_an_environments_reward_beyond_the_limit_is_its_fault_although_the_agent_caught_it(counting, ticket):
    async def catches_all(_task, llm, env):
        await env.reset()
        await llm.chat([{"role": "user", "content": "add"}])
        with contextlib.suppress(Exception):
            await env.call("add", {"n": 5})

    async with counting(["so"], catches_all) as (runner, _):
        scaled = dataclasses.replace(runner, limits=dataclasses.replace(runner.limits, reward_scale=1e7))
        with pytest.raises(EnvFault, match=r"times env.reward_scale, 1e\+07, brings the newest step to"):
            await scaled.play(ticket, 1)


async def test_a_last_call_that_is_repeated_is_rewarded_once(counting, ticket):
    """A client that has waited too long for the answer asks again, while the first request is under way."""
    async def asks_again(_task, llm, env):
        await env.reset()
        await llm.chat([{"role": "user", "content": "add"}])
        first, again = await asyncio.gather(*(env.call("add", {"n": 5}) for _ in range(2)), return_exceptions=True)
        assert (first.done, str(again)) == (True, "the episode is over")

    async with counting(["so"], asks_again) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (episode.won, episode.total_reward) == (True, 12.5)


async def test_an_agent_that_asks_for_ever_after_its_calls_are_used_up_is_told_so(counting, ticket):
    """Its own loop of attempts takes the refusal for an error that passes."""
    async def tries_again(_task, llm, _env):
        while True:
            try:
                await llm.chat([{"role": "user", "content": "x"}])
            except Exception:
                await asyncio.sleep(0.01)

    async with counting(["so", "so"], tries_again) as (runner, _):
        hasty = dataclasses.replace(runner, settings=AgentSection(name="x:y", seconds=0.5, max_calls=2))
        with pytest.raises(AgentFault, match=r"\(agent\.seconds\); before that, the episode has made its 2 calls \("):
            await hasty.play(ticket, 1)


async def test_an_agent_whose_first_prompt_is_too_long_has_an_episode_that_says_so(counting, ticket):
    """It was told that it had made no call, and played three times. The store refuses an episode without a step."""
    async def asks_much(_task, llm, _env):
        await llm.chat([{"role": "user", "content": "x" * 9000}])

    async with counting([], asks_much) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (episode.steps, episode.end) == ([], "context")


@pytest.mark.parametrize("caught", [True, False])
async def test_an_action_after_the_one_that_won_takes_no_win_away(counting, ticket, caught):
    """The policy wrote two calls in one answer, and the agent carried out both."""
    async def at_once(_task, llm, env):
        await env.reset()
        for _ in range(2):
            await llm.chat([{"role": "user", "content": "add"}])
            results = await asyncio.gather(*(env.call("add", {"n": 5}) for _ in range(2)), return_exceptions=caught)
        if caught:
            assert isinstance(results[1], ValueError)

    async with counting(["so"] * 2, at_once) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (episode.won, episode.end) == (True, "won")


async def test_an_agent_that_cancels_itself_has_failed(counting, ticket):
    async def quitter(*_):
        raise asyncio.CancelledError

    async with counting([], quitter) as (runner, _):
        with pytest.raises(AgentFault, match=r"the agent failed on .*: CancelledError"):
            await runner.play(ticket, 1)


async def test_a_failure_names_the_line_of_the_agent(counting, ticket):
    """No traceback of an agent is kept, and a KeyError alone says nothing."""
    async def wrong(*_):
        int("x")

    async with counting([], wrong) as (runner, _):
        with pytest.raises(AgentFault, match=r"base 10: 'x' \(in wrong, test_runner.py:\d+\)$"):
            await runner.play(ticket, 1)


async def test_an_agent_that_leaves_the_process_has_failed(counting, ticket):
    """As a library made for a command line does. It ended the worker, and all its other episodes with it."""
    async def leaves(*_):
        sys.exit("no such option")

    async with counting([], leaves) as (runner, _):
        with pytest.raises(AgentFault, match=r"the agent failed on .*: SystemExit: no such option"):
            await runner.play(ticket, 1)


async def test_a_number_that_an_agent_returns_is_a_fault_and_no_lost_reward(counting, ticket):
    """It is the reward of other frameworks' agents. Nobody read it, so the episode had a reward of 0."""
    async def returns(_task, llm, _env):
        await llm.chat([{"role": "user", "content": "x"}])
        return 1.0

    async with counting(["so"], returns) as (runner, _):
        with pytest.raises(AgentFault, match=r"failed on .*: it returned 1.0, .*llm.earn"):
            await runner.play(ticket, 1)


async def test_an_action_that_is_too_long_for_the_server_is_cut_and_no_fault(counting, ticket):
    """All three attempts failed, so the groups in which a policy wrote most were dropped."""
    seen = []

    async def writes_much(_task, llm, env):
        await env.reset()
        await llm.chat([{"role": "user", "content": "x"}])
        seen.append(await env.step("x" * (MAX_ACTION + 1)))
        seen.append(await env.step("x"))

    async with counting(["so"], writes_much) as (runner, _):
        await runner.play(ticket, 1)
    assert [now.observation for now in seen] == ["Call a tool."] * 2


@pytest.mark.parametrize(("recovers", "end"), [(True, "lost"), (False, "context")])
async def test_an_agent_that_fails_after_a_prompt_was_too_long_ended_by_it(counting, ticket, recovers, end):
    """Whether another call of it fitted meanwhile or not, its failure is no fault. One that goes on has its own end."""
    async def summarises(_task, llm, _env):
        first = {"role": "user", "content": "x"}
        await llm.chat([first])
        try:
            await llm.chat([{"role": "user", "content": "x" * 9000}])
        except EpisodeOver as over:
            await llm.chat([first])
            if not recovers:
                raise RuntimeError from over

    async with counting(["so", "then"], summarises) as (runner, _):
        episode = await runner.play(ticket, 1)
    assert (len(episode.steps), episode.end, episode.won) == (2, end, False)


async def test_a_call_that_the_agent_did_not_wait_for_is_no_step(counting, ticket, monkeypatch: pytest.MonkeyPatch):
    """Its answer may come while the environment is closed, or while the episode waits for a slow store."""
    asked, answers = asyncio.Event(), [asyncio.Event(), asyncio.Event()]
    calls: list[asyncio.Task[object]] = []

    async def hurried(_task, llm, _env):
        await llm.chat([{"role": "user", "content": "7 plus 3"}])
        sample = llm.engine.sample

        async def slow(*prompt, **named):
            asked.set()
            await answers[len(calls) - 1].wait()
            return await sample(*prompt, **named)

        monkeypatch.setattr(llm.engine, "sample", slow)
        for _ in answers:
            calls.append(asyncio.create_task(llm.chat([{"role": "user", "content": "again"}])))
            await asked.wait()
            asked.clear()

    async def closes(game):
        answers[0].set()
        await calls[0]

    monkeypatch.setattr(EpisodeHandle, "close", closes)
    async with counting(["10", "11", "12"], hurried) as (runner, _):
        episode = await runner.play(ticket, 1)
        answers[1].set()
        await calls[1]
    assert len(episode.steps) == 1


AWAY_S = 3.0
"""How long each wait lasts. The agents have a second less."""
HASTY = AgentSection(name="x:y", seconds=AWAY_S - 1)
ASKED = [{"role": "user", "content": "x"}]


@pytest.fixture
def server():
    """Starts an environment server at the same port as before. The end of the stack that it returns ends the server."""
    port = likely_port()

    def start() -> contextlib.ExitStack:
        app = create_app(counter_spec().open(EnvSection(name="counter:SPEC")), Settings())
        stack = contextlib.ExitStack()
        stack.enter_context(serving_in_thread(app, bind("127.0.0.1", port), local_only=True, name="counter"))
        started.append(stack)
        return stack

    started: list[contextlib.ExitStack] = []
    start.url = f"http://127.0.0.1:{port}"
    yield start
    for stack in started:
        stack.close()


async def test_an_agent_that_waits_for_servers_that_are_away_loses_no_time(counting, ticket, server):
    """It failed, so an outage that env.outage_seconds allows used up its attempts."""
    first = server()

    async def acts(_task, llm, env):
        await env.reset()
        await llm.chat(ASKED)
        await asyncio.to_thread(first.close)
        asyncio.get_running_loop().call_later(AWAY_S, server)
        await env.call("add", {"n": 5})

    async with counting(["so"], acts) as (runner, _), EnvClient([server.url], timeout_s=20) as client:
        episode = await dataclasses.replace(runner, env=client, settings=HASTY).play(ticket, 1)
    assert (episode.won, episode.replays, episode.seconds > AWAY_S) == (True, 1, True)


async def test_an_agent_that_asks_no_server_loses_time_also_while_all_are_away(counting, ticket, server):
    """Nobody may ask them again: what was known of them last would give it time without end."""
    first = server()

    async def hangs(_task, llm, env):
        await env.reset()
        await asyncio.to_thread(first.close)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await env.call("add", {"n": 5})
        await asyncio.sleep(60)

    async with counting([], hangs) as (runner, _), EnvClient([server.url], timeout_s=20) as client:
        with pytest.raises(AgentFault, match=r"did not end .* within 2 s \(agent.seconds\)"):
            await dataclasses.replace(runner, env=client, settings=HASTY).play(ticket, 1)
        assert client.away


async def test_an_agent_loses_no_time_while_the_engine_is_paused(counting, ticket):
    """As while a learner uses the GPU of both, which may take many minutes."""
    async def waits(_task, llm, env):
        llm.engine.paused = True
        await asyncio.sleep(AWAY_S)
        llm.engine.paused = False
        await llm.chat(ASKED)

    async with counting(["so"], waits) as (runner, _):
        episode = await dataclasses.replace(runner, settings=HASTY).play(ticket, 1)
    assert len(episode.steps) == 1


SUM = [{"role": "user", "content": "7 plus 3"}]


@pytest.fixture
def stored(counting, ticket):
    """`stored(does)` plays an agent that asks once and then does this; the episode as the learner reads it."""
    async def made(does):
        async def agent(_task, llm, env):
            await env.reset()
            await llm.chat(SUM)
            return await does(llm, env)

        async with counting(["so", "lever"], agent) as (runner, _):
            return decode_episode(encode_episode(await runner.play(ticket, 1)))

    return made


@pytest.mark.parametrize("half", [np.float32(0.5), np.float64(0.5), np.array(0.5), torch.tensor(0.5)])
async def test_rewards_of_numpy_and_torch_are_numbers(stored, half):
    """No episode of such an agent could be written: the mean of a list of scores is numpy's."""
    async def earns(llm, _env):
        llm.earn(half)
        llm.won = np.bool_(True)

    episode = await stored(earns)
    assert (episode.steps[0].reward, episode.won) == (5.0, True)


async def test_an_action_that_numpy_chose_is_a_text(stored):
    async def explores(_llm, env):
        await env.step(np.random.default_rng(0).choice(["look", "go"]))

    assert (await stored(explores)).steps[0].action in ("look", "go")


async def test_half_of_a_surrogate_pair_in_an_action_is_no_fault(stored):
    """A policy writes such a one as an escape of JSON, which the agent decodes."""
    async def decodes(_llm, env):
        await env.step("caf\ud83d")

    assert (await stored(decodes)).steps[0].action == "caf?"


async def test_a_text_that_ends_the_answer_may_come_alone(stored):
    """It was read as a list of characters, the first of which ended the answer."""
    async def stops(llm, _env):
        assert (await llm.chat(SUM, stop="er")).text == "lev"

    await stored(stops)


async def earns_a_text(llm, _env):
    llm.earn("1.0")


async def earns_too_much(llm, _env):
    llm.earn(1e308)


async def earns_too_much_in_all(llm, _env):
    llm.earn(6e4)
    llm.earn(6e4)


async def says_no(llm, _env):
    llm.won = "no"


async def acts_by_number(_llm, env):
    await env.step(3)


async def acts_by_bytes(_llm, env):
    await env.step(b"look")


async def names_a_state(llm, _env):
    await llm.chat(SUM, state=("room", 3))


async def returns(_llm, _env):
    return np.float32(1.0)


@pytest.mark.parametrize(("does", "problem"), [
    (earns_a_text, "the reward is '1.0', and it should be a number"),
    (earns_too_much, r"the reward is 1e\+308, and it should be a number of at most 1e\+06"),
    (earns_too_much_in_all, r"brings the newest step to 1.2e\+06, and it should stay within 1e\+06"),
    (says_no, "the agent set llm.won to 'no', and not to True or False"),
    (acts_by_number, "the action is 3, and env.step takes a text"),
    (acts_by_bytes, "the action is b'look', and env.step takes a text"),
    (names_a_state, r"the state of a call is \('room', 3\), and it should be a text"),
    (returns, "it returned 1.0, and what an agent returns is not read")])
async def test_a_value_that_no_record_holds_is_a_fault_of_its_own_episode(stored, does, problem):
    """Some were written as they came, and the learner could not read the group."""
    with pytest.raises(AgentFault, match=problem):
        await stored(does)
