"""Trajectories from a file as examples for the cold start: JSON lines, one trajectory per line, in one of two forms.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
        a conversation; each answer of the assistant is trained on, after all messages before it. An answer with
        "weight": 0 is read and not trained on, nor are prompts that contain it. "tools" next to "messages" are shown to
        the model by its template; calls of them are in the content, as the model writes them.
    {"steps": [{"prompt": "...", "response": "..."}, ...]}
        turns with prompts of their own, as this system plays them

Other keys of a line are ignored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from learner.cold_start.sft_data import Example
from services.errors import UserError
from services.files import NOT_JSON, Damaged, open_plain, without_mark

LINE_BYTES = 16 << 20
"""Longest line."""
_FORMS = 'write {"messages": [...]} or {"steps": [...]}'
_CALLS = "write the calls into its content, in the form in which the model writes them"
_THOUGHT = "write the thought into its content, in its tags"
_UNREAD = (("tool_calls|function_call", _CALLS), ("(?i)(?!(finish|stop)_?reason$).*(reason|think|thought).*", _THOUGHT))
"""Patterns of message fields that are refused, and the fix: without their content a model would learn to leave it out.
Services name thoughts differently: thinking_blocks, reasoning_details. A finish_reason says only why an answer ended.
"""
_OTHER_FORMS = (
    (("conversations",), "in ShareGPT's form", "rename conversations to messages, from to role (human: user, gpt: "
     "assistant) and value to content"),
    (("prompt", "chosen", "rejected"), "in TRL's form of preferences", "write prompt and chosen as messages"),
    (("chosen", "rejected"), "in TRL's form of preferences", "rename chosen to messages"),
    (("prompt", "completion"), "in TRL's form of prompt and completion",
     'write both lists as one list of messages, or two texts as {"steps": [{"prompt": ..., "response": ...}]}'),
    (("instruction", "output"), "in Alpaca's form", 'write {"steps": [{"prompt": ..., "response": ...}]}'),
    (("text",), "a whole text, which does not say what the answers in it are", _FORMS))
"""Keys of other tools' lines, the name of the form, and how to write it."""


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    weight: Literal[0, 1] = 1
    name: str | None = None
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the message as chat templates take it."""
        optional = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content,
                **{key: value for key, value in optional.items() if value is not None}}


class _Conversation(msgspec.Struct):
    messages: list[_Message]


class _Step(msgspec.Struct):
    prompt: str
    response: str


class _Trajectory(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    steps: list[_Step] | None = None
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectories:
    """Examples from a file."""

    examples: list[Example]
    digest: str
    """blake2b over the file's bytes."""
    episodes: int
    """Number of trajectories."""


def read_trajectories(path: Path, *, chat: bool) -> Trajectories:
    """Reads a file. `chat`: whether the model reads conversations. For raw text, lines must have steps.

    Raises UserError that names the file and the line.
    """
    examples: list[Example] = []
    episodes, digest = 0, hashlib.blake2b(digest_size=16)
    try:
        for number, line in _lines(path):
            digest.update(line)
            if line.strip():
                episodes += 1
                examples.extend(_examples(line, f"{path} line {number}", chat=chat))
    except OSError as error:
        raise UserError(f"sft.file={path} cannot be read ({error.strerror})", "name a file of JSON lines") from None
    if not examples:
        raise UserError(f"{path} has no answer to train on", "see docs/tasks/trajectories.md")
    return Trajectories(examples=examples, digest=digest.hexdigest(), episodes=episodes)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with open_plain(path) as file:
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            line = without_mark(line, path) if number == 1 else line
            if len(line) > LINE_BYTES:
                raise Damaged(f"{path} line {number} is longer than {LINE_BYTES >> 20} MiB", "write shorter lines")
            yield number, line


def _examples(line: bytes, where: str, *, chat: bool) -> Iterator[Example]:
    """Yields the examples of one line. Raises UserError if it is no trajectory; `where` names it."""
    try:
        trajectory = msgspec.json.decode(line, type=_Trajectory)
    except NOT_JSON as error:
        raise UserError(f"{where} is no trajectory ({error})", _FORMS) from None
    if (trajectory.messages is None) == (trajectory.steps is None):
        if trajectory.messages is not None:
            raise UserError(f"{where} has both messages and steps", _FORMS)
        raise _other_form(line, where)
    if trajectory.steps is not None:
        yield from _of_steps(trajectory.steps, where)
    elif not chat:
        raise UserError(f"{where} has messages, and env.prompt makes raw text, not conversations",
                        "write steps, or use a prompt and a model with a chat template")
    else:
        yield from _of_messages(_messages(trajectory.messages or [], where), trajectory.tools or [], where)


def _other_form(line: bytes, where: str) -> UserError:
    """Returns the error for a line with neither messages nor steps. It names the form of another tool, if it has one.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except NOT_JSON as error:  # a key is not UTF-8, which shows only here
        return UserError(f"{where} is no trajectory ({error})", _FORMS)
    for keys, form, fix in _OTHER_FORMS:
        if all(key in fields for key in keys):
            return UserError(f"{where} is {form}", fix)
    return UserError(f"{where} has neither messages nor steps", _FORMS)


def _messages(written: list[dict[str, Any]], where: str) -> list[_Message]:
    """Returns the messages of a line. Raises UserError for a malformed message and for fields that are refused."""
    for number, message in enumerate(written, 1):
        if "from" in message and "value" in message:
            raise UserError(f"{where}, message {number} is in ShareGPT's form",
                            "rename from to role (human: user, gpt: assistant) and value to content")
        for field, fix in ((name, fix) for name, value in message.items() if value for pattern, fix in _UNREAD
                           if re.fullmatch(pattern, name)):
            raise UserError(f"{where}, message {number} has {field}, which is not read", fix)
        if isinstance(message.get("content"), list):
            raise UserError(f"{where}, message {number} has its content in parts", "join their texts to one text")
    try:
        return msgspec.convert({"messages": written}, _Conversation).messages
    except msgspec.ValidationError as error:
        raise UserError(f"{where} is no trajectory ({error})", _FORMS) from None


def _of_steps(steps: list[_Step], where: str) -> Iterator[Example]:
    if not steps:
        raise UserError(f"{where} has no steps", "leave the line out")
    for number, step in enumerate(steps, 1):
        if not step.prompt or not step.response:
            raise UserError(f"{where}, step {number} has an empty {'response' if step.prompt else 'prompt'}",
                            "give both texts, or leave the step out")
        yield Example(prompt=step.prompt, response=step.response)


def _of_messages(messages: list[_Message], tools: list[dict[str, Any]], where: str) -> Iterator[Example]:
    for number, message in enumerate(messages, 1):
        if message.content is None:
            raise UserError(f"{where}, message {number} has no content", 'give it a text, which may be ""')
    answers = [number for number, message in enumerate(messages) if message.role == "assistant"]
    if not answers:
        raise UserError(f"{where} has no message of the assistant", "leave the line out, or add its answers")
    if answers[0] == 0:
        raise UserError(f"{where} begins with the assistant, so nothing is asked", "put the prompt before it")
    has_unlearned = False
    for number in answers:
        answer = messages[number].content
        if not answer:
            raise UserError(f"{where}, message {number + 1} is an empty answer", "leave the rest of the line out")
        if messages[number].weight:
            yield Example(prompt=tuple(each.as_dict() for each in messages[:number]), response=answer,
                          learn_prompt=not has_unlearned, tools=tuple(tools))
        else:
            has_unlearned = True
