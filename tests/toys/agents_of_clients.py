"""The agent of examples/tool_agent, written for three clients: each episode of a process takes the next of them.

A file with the client's name in the folder $AGENTS_OF_CLIENTS says that it has read an answer.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from examples.tool_agent.agent import TOOLS

OPENAI = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0)
ANTHROPIC = AsyncAnthropic(base_url="http://127.0.0.1", api_key="none", max_retries=0)
FUNCTIONS = [tool["function"] for tool in TOOLS]


async def completions(llm, text):
    client = OPENAI.with_options(base_url=llm.base_url, api_key=llm.api_key)
    reply = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": text}], tools=TOOLS)
    return [(call.function.name, json.loads(call.function.arguments))
            for call in reply.choices[0].message.tool_calls or []]


async def responses(llm, text):
    client = OPENAI.with_options(base_url=llm.base_url, api_key=llm.api_key)
    async with client.responses.stream(
            model="policy", input=text, tools=[{"type": "function", **one} for one in FUNCTIONS]) as events:
        response = await events.get_final_response()
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


async def messages(llm, text):
    client = ANTHROPIC.with_options(base_url=llm.server_url, api_key=llm.api_key)
    tools = [{"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
             for one in FUNCTIONS]
    async with client.messages.stream(
            model="policy", max_tokens=99, messages=[{"role": "user", "content": text}], tools=tools) as events:
        message = await events.get_final_message()
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


CLIENTS = (completions, responses, messages)
_turns = itertools.cycle(CLIENTS)


async def agent(_task, llm, env):
    ask, now = next(_turns), await env.reset()
    said = [now.observation]
    while not now.done:
        calls = await ask(llm, "\n".join(said))
        (Path(os.environ["AGENTS_OF_CLIENTS"]) / ask.__name__).touch()
        now = await env.step(" ".join([calls[0][0], *map(str, calls[0][1].values())]) if calls else "none")
        said.append(now.observation)
