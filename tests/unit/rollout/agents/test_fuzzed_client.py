"""No client, however wrong, yields a training row that differs from what was sampled."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from learner.rows.batch import assign_credit, rows_of
from rollout.agents.app import create_app
from rollout.agents.session import AgentSession
from services.config.tree import CreditSection
from services.records import Episode, Ticket

USER = {"role": "user", "content": "hello"}
DIALECTS = [("/v1/chat/completions", "messages", lambda reply: reply["choices"][0]["message"]["content"]),
            ("/v1/responses", "input", lambda reply: reply["output"][0]["content"][0]["text"]),
            ("/v1/messages", "messages", lambda reply: reply["content"][0]["text"])]
"""The paths, the fields of the history, and the texts of answers."""


def answers(draw):
    """Bytes at random: most are no text, so what comes back through a client is other tokens."""
    while True:
        decodable = draw.random() < 0.5
        yield "ok" * draw.randrange(3) if decodable else [draw.randrange(2, 258) for _ in range(draw.randrange(5))]


def session(text, engine, k):
    ticket = Ticket(group="train/0", k=k, size=2, task="t/0", seed=k, kind="train", temperature=1.0, max_steps=9)
    return AgentSession(ticket=ticket, engine=engine, text=text, prompt_tokens=120, response_tokens=8, max_calls=12)


class WrongClient:
    """Sends the calls of two episodes in any order, also at the same time, drops some, and changes the histories."""

    def __init__(self, http, draw, keys):
        self._http, self._draw, self._keys = http, draw, keys
        self._histories = {key: [USER] for key in keys}
        self._running = set()

    async def act(self):
        draw, key = self._draw, self._draw.choice(self._keys)
        history = self._histories[draw.choice(self._keys) if draw.random() < 0.2 else key]
        calling = asyncio.create_task(self._call(key, list(history)))
        self._running.add(calling)
        case = draw.randrange(6)
        if case == 0:
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            calling.cancel()
        elif case > 1:
            with suppress(asyncio.CancelledError):
                await calling
        if draw.random() < 0.3:
            await self._http.post("/reward", json={"reward": draw.random()}, headers=self._head(key))

    async def _call(self, key, history):
        path, field, text = self._draw.choice(DIALECTS)
        body = {field: history} if self._draw.random() < 0.9 else self._draw.choice([{}, {field: [{}]}])
        reply = await self._http.post(path, json={"max_tokens": 8} | body if field == "messages" else body,
                                      headers=self._head(key))
        if reply.status_code == 200:
            written = text(reply.json())
            change = self._draw.choice([written, written, written, written[::-1], written + " "])
            kept = history if self._draw.random() < 0.8 else history[-1:]
            self._histories[key] = [*kept, {"role": "assistant", "content": change}, USER]

    def _head(self, key):
        return {"authorization": f"Bearer {key if self._draw.random() < 0.9 else 'wrong'}"}

    async def end(self):
        await asyncio.gather(*self._running, return_exceptions=True)


def rows_are_what_was_sampled(sessions, engine):
    groups = [[Episode(ticket=llm.ticket, steps=llm.steps, won=False, end="lost", worker="w", attempt=1, seconds=0.0,
                       engine="e") for llm in sessions if llm.steps]]
    if not groups[0]:
        return 0, 0
    steps = [step for episode in groups[0] for step in episode.steps]
    rows = rows_of(groups, assign_credit(groups, CreditSection()), policy_step=0)
    ends = rows.lengths.cumsum()
    left = list(engine.asked)
    for row, step in enumerate(steps):
        begin = ends[rows.sequence[row]] - rows.lengths[rows.sequence[row]]
        answer = begin + rows.prompt_lengths[row]
        trained = rows.tokens[begin:answer].tolist(), rows.tokens[answer:answer + rows.response_lengths[row]].tolist()
        left.remove(trained)  # raises where no call of the engine is left that read and sampled this
        assert len(step.logprobs) == len(step.response_ids)
    return len(steps) - len(rows.lengths), sum(step.broke for step in steps)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_every_row_is_a_call_that_was_sampled(text, seed):
    asyncio.run(play(text, random.Random(seed)))


async def play(text, draw):
    engine = ScriptedEngine(text, answers(draw))
    sessions = {"a": session(text, engine, 0), "b": session(text, engine, 1)}
    transport = httpx.ASGITransport(create_app({key: (llm, None) for key, llm in sessions.items()}))
    async with httpx.AsyncClient(transport=transport, base_url="http://episode") as http:
        client = WrongClient(http, draw, list(sessions))
        for _ in range(draw.randrange(1, 16)):
            await client.act()
        await client.end()
    return rows_are_what_was_sampled(list(sessions.values()), engine)


async def test_the_wrong_client_reaches_what_it_is_there_for(text):
    """Over a few seeds it joins calls into sequences, and breaks histories."""
    joins, breaks = zip(*[await play(text, random.Random(seed)) for seed in range(12)], strict=True)
    assert min(sum(joins), sum(breaks)) > 5
