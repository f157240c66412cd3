"""Values that an agent hands over reach the learner, or fail its episode by a line that names them."""

import numpy as np
import pytest
import torch

from services.errors import AgentFault
from services.records import decode_episode, encode_episode

SAID = [{"role": "user", "content": "7 plus 3"}]


@pytest.fixture
def stored(counting, ticket):
    """`stored(does)` plays an agent that asks once and then does this; the episode as the learner reads it."""
    async def made(does):
        async def agent(_task, llm, env):
            await env.reset()
            await llm.chat(SAID)
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
        assert (await llm.chat(SAID, stop="er")).text == "lev"

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
    await llm.chat(SAID, state=("room", 3))


async def returns(_llm, _env):
    return np.float32(1.0)


@pytest.mark.parametrize(("does", "told"), [
    (earns_a_text, "the reward is '1.0', and it should be a number"),
    (earns_too_much, r"the reward is 1e\+308, and it should be a number of at most 1e\+06"),
    (earns_too_much_in_all, r"brings the newest step to 1.2e\+06, and it should stay within 1e\+06"),
    (says_no, "the agent set llm.won to 'no', and not to True or False"),
    (acts_by_number, "the action is 3, and env.step takes a text"),
    (acts_by_bytes, "the action is b'look', and env.step takes a text"),
    (names_a_state, r"the state of a call is \('room', 3\), and it should be a text"),
    (returns, "it returned 1.0, and what an agent returns is not read")])
async def test_a_value_that_no_record_holds_is_a_fault_of_its_own_episode(stored, does, told):
    """Some were written as they came, and the learner could not read the group."""
    with pytest.raises(AgentFault, match=told):
        await stored(does)
