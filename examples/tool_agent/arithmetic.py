"""The task: a question in words, three tools that calculate, and one that answers. Two calls are enough, if the first
one is right.

    Tools: add, subtract, divide, answer.
    Question: 17 plus 3.        add {"a": 17, "b": 3}
    Result: 20.                 answer {"value": 20}
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gagpo.environments import Outcome, ParsedAction, Teacher, Turn, text_spec

WORDS = {"plus": "add", "minus": "subtract", "over": "divide"}
"""Maps the word of a question to the tool that it takes."""
TOOLS = "Tools: add, subtract, divide, answer."
"""The chat template of a model from scratch shows no tools, so the prompt names them. Else a call that offers some is
refused, because the model would not know of them."""
CALL, CALL_END = "<tool_call>", "</tool_call>"
QUESTIONS = list(itertools.product(range(12, 51), WORDS, range(2, 10)))
"""All 936 questions, in an order that is random and always the same. The number of a task is its place here, so that no
question is in two splits."""
random.Random(0).shuffle(QUESTIONS)


class Arithmetic:
    """One question. Any text is a legal action; one that is no call of a tool gets an error."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        """Asks the question with this number."""
        a, word, b = QUESTIONS[seed]
        self._value = calculate(WORDS[word], a, b)
        return f"{TOOLS}\nQuestion: {a} {word} {b}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Calls a tool: `add 17 3`. An answer ends the game."""
        name, *numbers = action.split() or ["none"]
        if not all(number.isdecimal() and len(number) < 5 for number in numbers):
            return "Error: numbers.", 0.0, False, False, {}
        values = [int(number) for number in numbers]
        if name == "answer" and len(values) == 1:
            won = values[0] == self._value
            return "Right." if won else "Wrong.", float(won), True, False, {"won": won}
        if name in WORDS.values() and len(values) == 2 and values[1]:
            return f"Result: {calculate(name, *values)}.", 0.0, False, False, {}
        return "Error: no such tool.", 0.0, False, False, {}


def calculate(tool: str, a: int, b: int) -> int:
    """Returns what the tool says. A quotient is a whole number, rounded down."""
    return {"add": a + b, "subtract": a - b, "divide": a // b}[tool]


def read_call(text: str) -> str | None:
    """Returns the action of the first tool call in an answer: the tool's name and its numbers. None: there is none."""
    _, opened, rest = text.partition(CALL)
    body, closed, _ = rest.partition(CALL_END)
    try:
        call = msgspec.json.decode(body)
        return " ".join(map(str, [call["name"], *call["arguments"].values()])) if opened and closed else None
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, AttributeError):
        return None


class ToolPrompt:
    """The cold start's prompt: all that was said so far, as one message. The agent sends the same."""

    name = "tools"
    chat = True

    def render(self, first: Outcome, turns: Sequence[Turn], now: Outcome) -> str:
        """Question and results, one a line."""
        said = [first.observation, *(turn.observation for turn in turns[1:]), *([now.observation] if turns else [])]
        return "\n".join(said)

    def parse(self, text: str) -> ParsedAction:
        """Takes the first tool call."""
        action = read_call(text)
        return ParsedAction(action=action or "none", valid=action is not None)


class Beginner:
    """The scripted player that the cold start imitates. It knows how tools are called, and not which one a question is
    about: it tries them in random order until the right one has answered, and answers what that one said."""

    def __init__(self, first: Outcome, rng: random.Random) -> None:
        self._a, self._word, self._b = first.observation.rpartition("Question: ")[2].removesuffix(".").split()
        self._untried = rng.sample(list(WORDS.values()), len(WORDS))
        self._tried = ""

    def act(self, now: Outcome) -> str:
        """Returns one call."""
        if self._tried == WORDS[self._word]:
            return written("answer", value=int(now.observation.removeprefix("Result: ").removesuffix(".")))
        self._tried = self._untried.pop()
        return written(self._tried, a=int(self._a), b=int(self._b))


def written(tool: str, **arguments: int) -> str:
    """A call as the model writes it. A space is before each number, as in questions: so it is the same token."""
    return f"{CALL}{json.dumps({'name': tool, 'arguments': arguments})}{CALL_END}"


_GAME = text_spec(Arithmetic, name="arithmetic", version="1", max_steps=4, sizes=(600, 80, 256))
SPEC = replace(_GAME, prompts={"tools": lambda _history: ToolPrompt()}, stops=(CALL_END,),
               teacher=Teacher(player=lambda first, rng, _sft: Beginner(first, rng), names="numbered"))
