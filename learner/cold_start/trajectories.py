"""Trajectories from a file as examples for the cold start: JSON lines, one trajectory per line, in one of two forms.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
        a conversation; each answer of the assistant is trained on, after all messages before it. An answer with
        "weight": 0 is read and not trained on, nor are prompts that contain it. "tools" beside "messages" are shown to
        the model by its template; calls of them stand in the content, as the model writes them.
    {"steps": [{"prompt": "...", "response": "..."}, ...]}
        turns with prompts of their own, as this system plays them

Other keys of a line are ignored.
"""

from __future__ import annotations

import hashlib
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
_UNREAD = {"tool_calls": _CALLS, "function_call": _CALLS, "reasoning_content": _THOUGHT, "reasoning": _THOUGHT}
"""Maps each part of a message that is not read to where it belongs. A model would learn to leave it out."""


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    weight: Literal[0, 1] = 1
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def written(self) -> dict[str, Any]:
        """Returns the message as chat templates take it."""
        named = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content,
                **{key: value for key, value in named.items() if value is not None}}


class _Step(msgspec.Struct):
    prompt: str
    response: str


class _Trajectory(msgspec.Struct):
    messages: list[_Message] | None = None
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
    """Reads a file. `chat`: the model reads conversations; otherwise raw text, for which only steps will do.

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
        found = msgspec.json.decode(line, type=_Trajectory)
    except NOT_JSON as error:
        raise UserError(f"{where} is no trajectory ({error})", _FORMS) from None
    if (found.messages is None) == (found.steps is None):
        which = "both messages and steps" if found.messages is not None else "neither messages nor steps"
        raise UserError(f"{where} has {which}", _FORMS)
    if found.steps is not None:
        yield from _of_steps(found.steps, where)
    elif not chat:
        raise UserError(f"{where} has messages, and env.prompt makes raw text, not conversations",
                        "write steps, or use a prompt and a model with a chat template")
    else:
        yield from _of_messages(found.messages or [], found.tools or [], where)


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
        for field, fix in _UNREAD.items():
            if getattr(message, field):
                raise UserError(f"{where}, message {number} has {field}, which is not read", fix)
        if message.content is None:
            raise UserError(f"{where}, message {number} has no content", 'give it a text, which may be ""')
    answers = [number for number, message in enumerate(messages) if message.role == "assistant"]
    if not answers:
        raise UserError(f"{where} has no message of the assistant", "leave the line out, or add its answers")
    if answers[0] == 0:
        raise UserError(f"{where} begins with the assistant, so nothing is asked", "put the prompt before it")
    unlearned = False
    for number in answers:
        answer = messages[number].content
        if not answer:
            raise UserError(f"{where}, message {number + 1} is an empty answer", "leave the rest of the line out")
        if messages[number].weight:
            yield Example(prompt=tuple(each.written() for each in messages[:number]), response=answer,
                          learn_prompt=not unlearned, tools=tuple(tools))
        else:
            unlearned = True
