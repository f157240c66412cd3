"""OpenAI's Responses: a request as a chat completion's, and an answer in its form.

    items of the input                       the conversation that the model reads
    a text, or a message                     a message
    reasoning                                begins the assistant's message: its thought, in <think> tags
    function_call                            a call of the assistant's message
    function_call_output                     a message of the role `tool`
    item_reference                           a part of a stored answer of the same episode

The items of an answer put together are its own characters, so an answer that comes back as it was continues its row of
tokens, and so does one that `previous_response_id` names. Other texts of one message get a line break between them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from envservice.text.response_format import Thought, split_thought
from rollout.agents.completions import (
    SAMPLING,
    ChatRequest,
    answer_message,
    calls_of,
    function_tool,
    templated,
    written_arguments,
)
from rollout.agents.refusals import CONSTRAINED, RENDERED, TEXT_ALONE, FieldRules, ListOf, Refused
from rollout.agents.session import ChatAnswer, StoredAnswers
from services.chat import Message

ENCRYPTED = "reasoning.encrypted_content"
"""The value of `include` by which clients without `store` ask for the thought, to send it back."""
RULES = FieldRules(
    ignored=frozenset((
        *SAMPLING, "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "stream_options", "max_tool_calls", "reasoning.summary", "reasoning.generate_summary",
        "client_metadata")),
    refused={"reasoning.effort": RENDERED, "reasoning.context": RENDERED, "reasoning.mode": RENDERED,
             "text.verbosity": RENDERED, "text.format": CONSTRAINED,
             "background": "an answer is waited for: leave it out",
             "top_logprobs": "only sampled tokens have logprobs: ask chat completions for those",
             "truncation": "a prompt is read whole: shorten the input",
             "context_management": "a prompt is read whole: shorten the input",
             "conversation": "no conversation is kept here: send previous_response_id, or the items",
             "prompt": "there are no stored prompts here: write its text in the input"},
    idle={"truncation": (None, "disabled"), "reasoning.mode": (None, "standard"), "reasoning.context": (None, "auto"),
          "text.format": (None, {}, {"type": "text"})})
"""The fields that are not read."""
_ITEM_RULES = FieldRules(refused={}, ignored=frozenset((
    "id", "status", "annotations", "logprobs", "phase", "caller", "summary")))
_TOOL_RULES = FieldRules(ignored=frozenset(), refused={"defer_loading": "the prompt shows all tools: leave it out"},
                         idle={"allowed_callers": (None, [], ["direct"])})


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class _Item(BaseModel):
    """An item of any type. Those that are read have classes of their own below."""

    model_config = ConfigDict(extra="allow")

    type: str = "message"


class _MessageItem(_Item):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | ListOf[_Part]


class _Reasoning(_Item):
    content: ListOf[_Part] | None = None
    encrypted_content: str | None = None
    status: str | None = None

    def thought(self) -> str:
        """Returns the thought in its tags, or "" if the client has left it out."""
        text = _joined(self.content, between="") if self.content else self.encrypted_content
        if text is None and (self.model_extra or {}).get("summary"):
            raise Refused(400, "a reasoning item has a summary alone, and those of the policy have their content: "
                          "send the items of an answer as they came")
        return "" if text is None else str(Thought(text, closed=self.status != "incomplete"))


class _Call(_Item):
    call_id: str
    name: str
    arguments: str

    def call(self) -> dict[str, Any]:
        """Returns the item as a call of a chat completion."""
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class _Output(_Item):
    call_id: str
    output: str | ListOf[_Part]


class _Reference(_Item):
    id: str


def _type(item: Any) -> str:
    """Returns the tag of an item's class. A message and a reference may lack their type."""
    if not isinstance(item, dict):
        return "other"
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    return kind if kind in ("message", "reasoning", "function_call", "function_call_output", "item_reference"
                            ) else "other"


_AnyItem = Annotated[
    Annotated[_MessageItem, Tag("message")] | Annotated[_Reasoning, Tag("reasoning")]
    | Annotated[_Call, Tag("function_call")] | Annotated[_Output, Tag("function_call_output")]
    | Annotated[_Reference, Tag("item_reference")] | Annotated[_Item, Tag("other")], Discriminator(_type)]
_ITEM: TypeAdapter[_Item] = TypeAdapter(_AnyItem)


_PARTS: dict[type[_Item], int] = {_Reasoning: 1, _MessageItem: 2, _Call: 3}
"""The place of each part in an answer."""
_OTHERS = 9
"""Place of any other item, behind all parts: a part that follows it begins another answer."""


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def chat(self) -> dict[str, Any]:
        """Returns the tool in the form of chat completions. Raises Refused for a tool that OpenAI's server runs."""
        if self.type != "function":
            raise Refused(400, f"a tool is of type {self.type:.60}, which the policy does not know: describe it as a "
                          "function, and call it yourself")
        _TOOL_RULES.check(self.model_extra)
        return function_tool(name=self.name, description=self.description, parameters=self.parameters,
                             strict=self.strict)


class ResponsesRequest(BaseModel):
    """The fields of a request that are used. The temperature is always the run's."""

    model_config = ConfigDict(extra="allow")

    input: str | ListOf[_AnyItem] = ""
    model: str = "policy"
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: ListOf[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    max_output_tokens: int | None = Field(default=None, ge=1)
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: ListOf[str] | None = None
    store: bool | None = True
    stream: bool | None = False

    def chat(self, stored: StoredAnswers) -> ChatRequest:
        """Returns the request as one of a chat completion. `stored`: the answers that it may name. Raises Refused."""
        RULES.check(self.model_extra)
        for section, fields in (("reasoning", self.reasoning), ("text", self.text)):
            RULES.check({f"{section}.{name}": value for name, value in (fields or {}).items()})
        if unknown := [name for name in self.include or () if name != ENCRYPTED]:
            raise Refused(400, f"include has {unknown[0]:.60}, which no answer has here: leave it out")
        previous: Sequence[Message] = ()
        if self.previous_response_id is not None:
            if self.previous_response_id not in stored.conversations:
                raise Refused(400, f"this episode has no stored response {self.previous_response_id:.60}: send the "
                              "items themselves", "previous_response_not_found")
            previous = stored.conversations[self.previous_response_id]
        given = self.input if isinstance(self.input, str) else [_resolved(item, stored) for item in self.input]
        messages = [*previous, *_messages(given)]
        if not messages:
            raise Refused(400, "input is empty")
        system = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return ChatRequest.model_validate({
            "messages": [*system, *messages], "model": self.model, "max_tokens": self.max_output_tokens,
            "tools": None if self.tools is None else [tool.chat() for tool in self.tools],
            "tool_choice": self.tool_choice, "parallel_tool_calls": self.parallel_tool_calls})

    def continued(self, chat: ChatRequest, answer: ChatAnswer) -> list[Message]:
        """Returns the conversation that a later call may continue, without instructions: each call sends its own."""
        return [*chat.conversation[0 if self.instructions is None else 1:],
                *templated([answer_message(answer, chat)])]

    def reply(self, answer: ChatAnswer, *, thought_tokens: int) -> dict[str, Any]:
        """Returns an answer as a response. `thought_tokens`: how many of its tokens are its thought."""
        cut = answer.sample.finished == "length"
        given = len(answer.sample.ids)
        return {
            "id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time()), "error": None,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": self.instructions, "max_output_tokens": self.max_output_tokens, "model": self.model,
            "output": list(self._items(answer, "incomplete" if cut else "completed")),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id, "store": self.store is not False,
            "tool_choice": self.tool_choice or "auto", "truncation": "disabled",
            "tools": [tool.model_dump(exclude_unset=True) for tool in self.tools or ()],
            "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": given,
                      "total_tokens": answer.prompt_tokens + given,
                      "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                      "output_tokens_details": {"reasoning_tokens": thought_tokens}}}

    def _items(self, answer: ChatAnswer, status: str) -> Iterator[dict[str, Any]]:
        thought, text = split_thought(answer.content)
        if thought is not None:
            yield {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": [],
                   "content": [{"type": "reasoning_text", "text": thought.text}],
                   "encrypted_content": thought.text if ENCRYPTED in (self.include or ()) else None,
                   "status": "completed" if thought.closed else "incomplete"}
        if text or (thought is None and not answer.parsed.calls):
            yield {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "status": status,
                   "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]}
        for number, call in calls_of(answer, parallel=self.parallel_tool_calls):
            yield {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": number, "name": call.name,
                   "arguments": written_arguments(call), "status": "completed"}


def stream_events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a response as the events of a stream. The entire answer exists already, so each item has one delta."""
    for number, event in enumerate(_events(response)):
        yield {**event, "sequence_number": number}


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    started = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        begun = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield {"type": "response.output_item.added", "output_index": index,
               "item": {**item, **begun, "status": "in_progress"}}
        if item["type"] == "function_call":
            yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"],
                   "name": item["name"]}
        else:
            yield from _part_events(item["content"][0], {**place, "content_index": 0})
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _part_events(part: dict[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    more = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    yield {"type": f"response.{part['type']}.delta", **place, "delta": part["text"], **more}
    yield {"type": f"response.{part['type']}.done", **place, "text": part["text"], **more}
    yield {"type": "response.content_part.done", **place, "part": part}


def _resolved(item: _Item, stored: StoredAnswers) -> _Item:
    """Returns the item, or the stored one that it refers to. Raises Refused if there is none."""
    if not isinstance(item, _Reference):
        return item
    if item.id not in stored.items:
        raise Refused(400, f"this episode has no stored item {item.id:.60}: send the item itself")
    return _ITEM.validate_python(stored.items[item.id])


def _messages(given: str | Sequence[_Item]) -> list[dict[str, Any]]:
    """Returns the input as messages. Items that can be parts of one answer are one message of the assistant: a thought,
    then a text, then calls."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    messages = list[dict[str, Any]]()
    part = _OTHERS
    for item in given:
        before, part = part, _PARTS.get(type(item), _OTHERS)
        if isinstance(item, _MessageItem) and item.role != "assistant":
            part = _OTHERS
        if part == _OTHERS:
            messages.append(_message(item))
            continue
        if not (before < part or before == part == _PARTS[_Call]):
            messages.append({"role": "assistant", "content": ""})
        _ITEM_RULES.check(item.model_extra)
        if isinstance(item, _Call):
            messages[-1].setdefault("tool_calls", []).append(item.call())
        elif isinstance(item, _Reasoning):
            messages[-1]["content"] += item.thought()
        elif isinstance(item, _MessageItem):
            messages[-1]["content"] += _joined(item.content, between="")
    return messages


def _message(item: _Item) -> dict[str, Any]:
    """Returns an item that is a message of its own. Raises Refused for an item of another type."""
    if isinstance(item, _Output):
        message = {"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)}
    elif isinstance(item, _MessageItem):
        message = {"role": item.role, "content": _joined(item.content)}
    else:
        raise Refused(400, f"the input has an item of type {item.type:.60}, and {TEXT_ALONE}")
    _ITEM_RULES.check(item.model_extra)
    return message


def _joined(content: str | Sequence[_Part], between: str = "\n") -> str:
    """Returns the text of a content. Raises Refused for parts that are no text."""
    if isinstance(content, str):
        return content
    for part in content:
        if part.text is None:
            raise Refused(400, f"a message has a part of type {part.type:.60}, and {TEXT_ALONE}")
        _ITEM_RULES.check(part.model_extra)
    return between.join(part.text or "" for part in content)
