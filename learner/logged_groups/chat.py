"""Episodes as chat messages, one JSON line each: verifiers' results.jsonl, TRL's completions, or logs of OpenAI's chat
completions.

    {"example_id": 7, "prompt": [{"role": "user", ...}], "completion": [{"role": "assistant", ...}, ...], "reward": 1}
    {"task": "7", "messages": [{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, ...], "reward": 1}

The lines with one `group` are a group; without that field, those with the same `task` and `example_id`, of which one
may be missing, or with the same `uid`. Without such fields, or if they are empty, the lines with the same first state
are a group. Each message of the assistant is an action, with its tool calls; consecutive ones are one action. Its state
is the text of all other messages since the previous action. `reward`, or `score`, is the reward of the last step.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any, cast

import msgspec

from learner.logged_groups.files import decode_line, numbered, opened
from learner.logged_groups.form import LARGEST_LOGGED_REWARD, LoggedEpisode, LoggedGroup, LoggedStep, Reward
from services.errors import UserError

PAGE = "see docs/tasks/logged-episodes.md"
GROUPS = (("group",), ("task", "example_id"), ("uid",))
"""Fields that together name a group. The first of these tuples counts from which a line has a field. verifiers writes
the environment's name as `task` and the number of the example as `example_id`."""


class _Function(msgspec.Struct):
    """A call's function. Other fields are not read."""

    name: Any = None
    arguments: Any = None


class _ToolCall(_Function):
    """A call of a tool. Some logs write name and arguments into the call itself."""

    function: _Function | None = None


class Message(msgspec.Struct):
    """A message. Other fields are not read."""

    role: str
    content: Any = None
    tool_calls: list[_ToolCall] | None = None


class ChatLine(msgspec.Struct, kw_only=True):
    """The fields of a line that are read."""

    messages: list[Message] | None = None
    prompt: list[Message] | str | None = None
    completion: list[Message] | str | None = None
    reward: Reward | None = None
    score: Reward | None = None
    group: str | int | None = None
    task: Any = None
    example_id: str | int | None = None
    uid: str | int | None = None
    error: Any = None
    """The fault that ended the episode, as verifiers records it next to a reward of 0."""


def read_chat(name: str) -> list[LoggedGroup]:
    """Returns the groups of a file (`-`: standard input). Raises UserError that names the line of the mistake."""
    groups: dict[str, list[LoggedEpisode]] = {}
    with opened(name) as stream:
        for number, text in numbered(stream):
            line = decode_line(number, text, ChatLine, PAGE)
            if line.reward is None and line.score is None:
                line.reward = _trl_reward(number, text)
            key, steps = _read_line(number, line)
            groups.setdefault(key, []).append(LoggedEpisode(steps=steps))
        if not groups:
            raise UserError("it has no lines", PAGE)
    return [LoggedGroup(id=key, episodes=episodes) for key, episodes in groups.items()]


def _read_line(number: int, line: ChatLine) -> tuple[str, list[LoggedStep]]:
    """Returns the key of a line's group, and its steps."""
    prompt = [Message("user", line.prompt)] if isinstance(line.prompt, str) else line.prompt or []
    completion = [Message("assistant", line.completion)] if isinstance(line.completion, str) else line.completion or []
    messages = line.messages or [*prompt, *completion]
    reward = line.score if line.reward is None else line.reward
    if reward is None:
        raise UserError(f"line {number}: it has neither `reward` nor `score`", PAGE)
    if line.error:
        raise UserError(f"line {number}: its episode broke off ({line.error!s:.60}), so its reward is not what it "
                        "earned", "leave out the lines with an `error`")
    steps: list[LoggedStep] = []
    for assistant, turn in groupby(messages, lambda message: message.role == "assistant"):
        if not assistant:
            state = "\n".join(_text(message.content) for message in turn)
            steps.append(LoggedStep(state=state, action=None, reward=0.0))
            continue
        if not steps:
            steps.append(LoggedStep(state="", reward=0.0))
        steps[-1].action = "\n".join(map(_action, turn))
    if steps and steps[-1].action is None:  # what was said after the last action
        steps.pop()
    if not steps:
        raise UserError(f"line {number}: it has no message of the assistant", PAGE)
    steps[-1].reward = reward
    return _group(number, line, steps[0].state), steps


def _group(number: int, line: ChatLine, begins: str) -> str:
    """Returns the key of a line's group. `begins`: its first state."""
    for fields in GROUPS:
        values = [value for field in fields if isinstance(value := getattr(line, field), str | int) and value != ""]
        if values:
            return " ".join(map(str, values))
    if not begins.strip():
        raise UserError(f"line {number}: its group is unknown: it has no text before the first answer",
                        f"give lines of one task the same `group`; {PAGE}")
    return begins


def _trl_reward(number: int, text: bytes) -> float | None:
    """Returns the reward of a row of TRL's completions, None for another line.

    Raises UserError for more than one column of numbers, because a row does not have the weights of TRL's reward
    functions, and for a number that is too large.
    """
    fields = decode_line(number, text, dict[str, Any], PAGE)
    if not fields.keys() >= {"step", "prompt", "completion", "advantage"}:
        return None
    numbers = {name: value for name, value in fields.items()
               if isinstance(value, float) and name not in ("step", "advantage")}
    if len(numbers) > 1:
        raise UserError(f"line {number}: it has no `reward`, and several numbers: {', '.join(numbers)}",
                        "add a column `reward`, such as the sum of its reward functions by their weights")
    value = next(iter(numbers.values()), None)
    if value is not None and abs(value) > LARGEST_LOGGED_REWARD:
        raise UserError(f"line {number}: {next(iter(numbers))} is {value:g}, and at most {LARGEST_LOGGED_REWARD:g} in "
                        "size is taken", PAGE)
    return value


def _action(message: Message) -> str:
    """Returns the text of an answer and its calls of tools, each as JSON with its name and arguments."""
    calls = [call.function or call for call in message.tool_calls or []]
    return "\n".join(filter(None, [_text(message.content), *(_call(call.name, call.arguments) for call in calls)]))


def _call(name: object, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True)


def _text(content: object) -> str:
    """Returns the text of a message's content. For a list of parts these are all its texts, and Anthropic's calls of
    tools and their results."""
    if isinstance(content, list):
        parts = [cast("dict[str, Any]", part) for part in cast("list[object]", content) if isinstance(part, dict)]
        return "\n".join(filter(None, map(_part, parts)))
    return "" if content is None else str(content)


def _part(part: dict[str, Any]) -> str:
    if part.get("type") == "tool_use":
        return _call(part.get("name"), part.get("input"))
    return _text(part.get("content") if part.get("type") == "tool_result" else part.get("text"))
