"""The agent: OpenAI's own client, with tools. Only `base_url` and the key say that a policy in training answers."""

from __future__ import annotations

from typing import Any

import msgspec
from openai import AsyncOpenAI


def tool(name: str, *numbers: str) -> dict[str, Any]:
    """A tool that takes whole numbers, as OpenAI's API describes it."""
    schema = {"type": "object", "properties": {number: {"type": "integer"} for number in numbers},
              "required": list(numbers)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


CLIENT = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0)
"""Episodes share its connections. A client of its own for each of a hundred episodes would hold the worker's event loop
for seconds, because each one reads the certificates of this machine."""
TOOLS = [tool("add", "a", "b"), tool("subtract", "a", "b"), tool("divide", "a", "b"), tool("answer", "value")]


async def agent(_task: str, llm: Any, env: Any) -> None:
    """Asks the model which tool to call until the environment is done."""
    client = CLIENT.with_options(base_url=llm.base_url, api_key=llm.api_key)
    now = await env.reset()
    said = [now.observation]
    while not now.done:
        reply = await client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "\n".join(said)}], tools=TOOLS)
        calls = reply.choices[0].message.tool_calls or []
        action = "none"
        if calls:
            arguments = msgspec.json.decode(calls[0].function.arguments)
            action = " ".join([calls[0].function.name, *map(str, arguments.values())])
        now = await env.step(action)
        said.append(now.observation)
