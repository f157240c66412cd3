"""Share of an agent's calls that are alone in their state, for several states of a call that names none.

    python -m lab.bench.agent_states

The scripted player of examples/tool_agent plays each held-out question eight times, as a conversation with tools and
without a gagpo environment. Run it in the folder that holds `examples`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from envservice.base import Outcome
from examples.tool_agent.arithmetic import Arithmetic, Beginner, read_call
from rollout.agents.session import latest_state

QUESTIONS, EPISODES, CALLS = range(600, 680), 8, 4
STATES: dict[str, Callable[[Sequence[dict[str, str]]], str]] = {
    "the conversation": json.dumps, "the latest message of a user or tool": latest_state}


def conversations(question: int, rng: random.Random) -> Iterator[list[dict[str, str]]]:
    """Yields the messages of each call of one episode."""
    game = Arithmetic()
    told: Any = game.reset(seed=question)[0]
    player, messages = Beginner(Outcome(observation=told, admissible_actions=[]), rng), [
        {"role": "user", "content": told}]
    for _ in range(CALLS):
        yield list(messages)
        answer = player.act(Outcome(observation=told, admissible_actions=[]))
        told, _, done, _, _ = game.step(read_call(answer) or "none")
        if done:
            return
        messages += [{"role": "assistant", "content": answer}, {"role": "tool", "content": told}]


def alone(state: Callable[[Sequence[dict[str, str]]], str]) -> float:
    """Returns the share of calls whose state no other call of the question has."""
    counts: list[int] = []
    for question in QUESTIONS:
        states = Counter(state(messages) for k in range(EPISODES)
                         for messages in conversations(question, random.Random(f"{question} {k}")))
        counts += [count for count in states.values() for _ in range(count)]
    return counts.count(1) / len(counts)


if __name__ == "__main__":
    for name, state in STATES.items():
        print(f"{alone(state):6.1%} alone by {name}")
