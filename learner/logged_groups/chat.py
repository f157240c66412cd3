"""Episodes as chat messages, one JSON line each: verifiers' results.jsonl, TRL's completions, or logs of OpenAI's chat
completions.

    {"example_id": 7, "prompt": [{"role": "user", ...}], "completion": [{"role": "assistant", ...}, ...], "reward": 1}
    {"task": "7", "messages": [{"role": "user", ...}, {"role": "assistant", "tool_calls": [...]}, ...], "reward": 1}

The lines with one `group` are a group; without that field, those with the same `task` and `example_id`, of which one
may be missing, or with the same `uid`. Without such fields, or if they are empty, the lines with the same first state
are a group. TRL's rows of another step are another group. Each message of the assistant is an action, with its tool
calls; consecutive ones are one action. Its state is the text of all other messages since the previous action, with a
digest in place of each picture. `reward`, or `score`, is the reward of the last step.
"""

from __future__ import annotations

import json
from hashlib import blake2b
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
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""Types of parts that are neither action nor state."""


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
    content: Any = msgspec.UNSET
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    """A call in OpenAI's older form."""


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
    step: Any = msgspec.UNSET
    advantage: Any = msgspec.UNSET
    error: Any = None
    """The fault that ended the episode, as verifiers records it next to a reward of 0."""

    @property
    def of_trl(self) -> bool:
        """Whether it is a row of TRL's completions. Rows of different steps are of different policies."""
        return (self.step is not msgspec.UNSET and self.advantage is not msgspec.UNSET
                and self.prompt is not None and self.completion is not None)


def read_chat(name: str) -> list[LoggedGroup]:
    """Returns the groups of a file (`-`: standard input). Raises UserError that names the line of the mistake."""
    groups: dict[str, list[LoggedEpisode]] = {}
    with opened(name) as stream:
        for number, text in numbered(stream):
            line = decode_line(number, text, ChatLine, PAGE)
            if line.messages is None and line.prompt is None and line.completion is None:
                raise _without_messages(number, text)
            if line.reward is None and line.score is None:
                line.reward = _trl_reward(number, text, line)
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
    for place, message in enumerate(messages):
        if message.content is msgspec.UNSET and not message.tool_calls and not message.function_call:
            raise UserError(f"line {number}: message {place} (of {message.role}) has no `content`", PAGE)
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
        roles = ", ".join(dict.fromkeys(repr(message.role) for message in messages)) or "none"
        raise UserError(f"line {number}: it has no message of the assistant; its roles are {roles}",
                        f"write the policy's as 'assistant'; {PAGE}")
    steps[-1].reward = reward
    group = _group(number, line, steps[0].state)
    return (f"step {line.step}: {group}" if line.of_trl else group), steps


def _without_messages(number: int, text: bytes) -> UserError:
    fields = decode_line(number, text, dict[str, Any], PAGE)
    return UserError(f"line {number}: it has no `messages`, but {', '.join(list(fields)[:9]) or 'nothing'}",
                     "give --from verl" if fields.keys() >= {"input", "output"} else PAGE)


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


def _trl_reward(number: int, text: bytes, line: ChatLine) -> float | None:
    """Returns the reward of a row of TRL's completions, None for another line.

    Raises UserError for more than one column of numbers, because a row does not have the weights of TRL's reward
    functions, and for a number that is too large.
    """
    fields = decode_line(number, text, dict[str, Any], PAGE)
    if not line.of_trl:
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
    calls += [message.function_call] if message.function_call else []
    return "\n".join(filter(None, [_text(message.content), *(_call(call.name, call.arguments) for call in calls)]))


def _call(name: object, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True)


def _text(content: object) -> str:
    """Returns the text of a message's content. For a list of parts these are all its texts, Anthropic's calls of tools
    and their results, and a digest of each other part, such as a picture: unlike ones are unlike states."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_part, cast("list[object]", content))))
    return "" if content in (None, msgspec.UNSET) else str(content)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        return _text(part)
    fields = cast("dict[str, Any]", part)
    kind = fields.get("type")
    if kind == "tool_use":
        return _call(fields.get("name"), fields.get("input"))
    if kind == "tool_result":
        return _text(fields.get("content"))
    if kind in THOUGHTS or "text" in fields:
        return "" if kind in THOUGHTS else _text(fields["text"])
    return f"[{kind} {blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=4).hexdigest()}]"
