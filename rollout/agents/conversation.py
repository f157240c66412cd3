"""An agent that talks: one conversation with the environment's outcomes, and its tools if it offers any.

`agent.name=rollout.agents.conversation:agent` plays any environment as a conversation. The model's answers go back into
the history as they were written, so most calls continue the one before and train as one sequence.
"""

from __future__ import annotations

from envservice.client.client import Result
from envservice.text.response_format import without_thought
from envservice.text.tool_calls import MISTRAL_CALLS
from rollout.agents.session import AgentSession, ChatAnswer
from rollout.agents.world import AgentWorld
from services.chat import Message


async def agent(_task: str, llm: AgentSession, env: AgentWorld) -> None:
    """Answers until the environment is done: calls of tools are carried out in order, any other answer is an action.

    The environment gets an action without the thought before it. The history keeps the thought.
    """
    now = await env.reset()
    messages: list[Message] = [{"role": "user", "content": shown(now)}]
    while not now.done:
        answer = await llm.chat(messages, tools=env.tools)
        messages.append(spoken(answer))
        for place, call in enumerate(answer.parsed.calls):
            now = await env.call(call.name, call.arguments)
            messages.append({"role": "tool", "name": call.name, "content": now.observation,
                             "tool_call_id": answer.call_id(place)})
            if now.done:
                return
        if not answer.parsed.calls:
            now = await env.step(without_thought(answer.content))
            messages.append({"role": "user", "content": shown(now)})


def spoken(answer: ChatAnswer) -> Message:
    """Returns an answer as a message: its text as it was written, but Mistral's calls as calls.

    Mistral's templates count messages, and take results of tools only after calls that they see.
    """
    if not answer.parsed.calls or MISTRAL_CALLS not in answer.text:
        return {"role": "assistant", "content": answer.text}
    calls = [{"id": answer.call_id(place), "type": "function",
              "function": {"name": call.name, "arguments": call.arguments}}
             for place, call in enumerate(answer.parsed.calls)]
    return {"role": "assistant", "content": answer.content, "tool_calls": calls}


def shown(now: Result) -> str:
    """Returns an outcome as a message: the observation, and the admissible actions if the environment lists them."""
    listed = f"\nActions: {'; '.join(now.admissible_actions)}" if now.admissible_actions else ""
    return now.observation + listed
