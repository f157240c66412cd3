"""Episodes as chat messages, one JSON line each: verifiers' results.jsonl, TRL's completions, or logs of OpenAI's chat
completions.

    {"example_id": 7, "prompt": [{"role": "user", ...}], "completion": [{"role": "assistant", ...}, ...], "reward": 1}
    {"task": "7", "messages": [{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, ...], "reward": 1}

The lines with one `group`, `task`, `example_id` or `uid` (the first of these fields that a line has) are a group;
without such fields, the lines with the same first state. Each message of the assistant is an action, with its tool
calls. Its state is the texts of users and tools since the previous action. `reward`, or `score`, is the reward of the
last step.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from learner.logged_groups.files import decode_line, numbered, opened
from learner.logged_groups.form import LoggedEpisode, LoggedGroup, LoggedStep, Reward
from services.errors import UserError

PAGE = "see docs/tasks/logged-episodes.md"
GROUPS = ("group", "task", "example_id", "uid")


class Message(msgspec.Struct):
    """A message. Other fields are not read."""

    role: str
    content: Any = None
    tool_calls: list[dict[str, Any]] | None = None


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
    steps: list[LoggedStep] = []
    texts: list[str] = []
    for message in messages:
        if message.role == "assistant":
            steps.append(LoggedStep(state="\n".join(texts), action=_action(message), reward=0.0))
            texts = []
        else:
            texts.append(_text(message.content))
    if not steps:
        raise UserError(f"line {number}: it has no message of the assistant", PAGE)
    steps[-1].reward = reward
    names = [value for field in GROUPS if isinstance(value := getattr(line, field), str | int)]
    return str(names[0]) if names else steps[0].state, steps


def _trl_reward(number: int, text: bytes) -> float | None:
    """Returns the reward of a row of TRL's completions, None for another line.

    Raises UserError for more than one column of numbers, because a row does not have the weights of TRL's reward
    functions.
    """
    fields = msgspec.json.decode(text, type=dict[str, Any])
    if not fields.keys() >= {"step", "prompt", "completion", "advantage"}:
        return None
    numbers = {name: value for name, value in fields.items()
               if isinstance(value, float) and name not in ("step", "advantage")}
    if len(numbers) > 1:
        raise UserError(f"line {number}: it has no `reward`, and several numbers: {', '.join(numbers)}",
                        "add a column `reward`, such as the sum of its reward functions by their weights")
    return next(iter(numbers.values()), None)


def _action(message: Message) -> str:
    """Returns the text of an answer and its calls of tools, each as JSON with its name and arguments."""
    calls = [call.get("function", call) for call in message.tool_calls or []]
    return "\n".join(filter(None, [_text(message.content), *(json.dumps(
        {"name": call.get("name"), "arguments": call.get("arguments")}, sort_keys=True) for call in calls)]))


def _text(content: object) -> str:
    """Returns the text of a message's content; of all parts if it is a list."""
    if isinstance(content, list):
        parts = [cast("dict[str, object]", part) for part in cast("list[object]", content) if isinstance(part, dict)]
        return "\n".join(_text(part.get("text", "")) for part in parts)
    return "" if content is None else str(content)
