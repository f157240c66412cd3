"""Anthropic's Messages: a request as a chat completion's, and an answer in its form.

    blocks of a message                      the conversation that the model reads
    text                                     a part of the content
    thinking                                 a part of the content, in <think> tags
    tool_use                                 a call of the assistant's message
    tool_result                              a message of the role `tool`

An answer's blocks put together are its own characters, so an answer that comes back as it was continues its row of
tokens. Texts of a user, a system or a tool get a line break between them: clients make several messages into one, and
the last word of one would run into the first of the next.

If a request does not turn `thinking` on, a thought stays in the text, in its tags, as in chat completions: such an
agent takes the first block for the text.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from envservice.text.response_format import Thought, split_thought
from rollout.agents.completions import SAMPLING, ChatRequest, calls_of, function_tool
from rollout.agents.refusals import CONSTRAINED, ENTIRE, RENDERED, TEXT_ALONE, FieldRules, ListOf, Refused
from rollout.agents.session import ChatAnswer

RULES = FieldRules(
    ignored=frozenset((*SAMPLING, "metadata", "service_tier", "speed", "inference_geo", "diagnostics", "cache_control",
                       "user_profile_id", "workspace_id")),
    refused={"output_config.effort": RENDERED, "output_config.format": CONSTRAINED, "output_format": CONSTRAINED,
             "context_management": "a prompt is read whole: shorten the messages",
             "container": "there is no code execution here: leave it out",
             "mcp_servers": "no tool runs here: offer its tools to the model, and call them yourself"},
    idle={"context_management": (None, {}, {"edits": []}, {"edits": [
        {"type": "clear_thinking_20251015", "keep": "all"}]})})
"""The fields that are not read."""
_BLOCK_RULES = FieldRules(ignored=frozenset(("cache_control", "citations", "caller")), refused={})
_TOOL_RULES = FieldRules(ignored=frozenset(("cache_control", "eager_input_streaming")), refused={
    "defer_loading": "the prompt shows all tools: leave it out"}, idle={"allowed_callers": (None, [], ["direct"])})
_CLOSED, _CUT = "closed", "cut"
"""Signatures of a thinking block, which clients send back. They say whether its thought had its closing tag."""
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
           503: "overloaded_error"}
"""Maps statuses to the types of errors. All others are an `api_error`."""


class _Block(BaseModel):
    """A block of any type. Those that are read have classes of their own below."""

    model_config = ConfigDict(extra="allow")

    type: str

    def text(self) -> str:
        """Returns the block as text of a message. Raises Refused for a block of another kind or with unknown fields."""
        raise Refused(400, f"a message has a part of type {self.type:.60}, and {TEXT_ALONE}")


class _Text(_Block):
    written: str = Field(alias="text")

    def text(self) -> str:
        _BLOCK_RULES.check(self.model_extra)
        return self.written


class _Thinking(_Block):
    thinking: str
    signature: str = ""

    def text(self) -> str:
        _BLOCK_RULES.check(self.model_extra)
        return str(Thought(self.thinking, closed=self.signature != _CUT))


class _ToolUse(_Block):
    id: str
    name: str
    input: dict[str, Any]

    def call(self) -> dict[str, Any]:
        """Returns the block as a call in OpenAI's form."""
        _BLOCK_RULES.check(self.model_extra)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.input}}


def _type(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if kind in ("text", "thinking", "tool_use", "tool_result") else "other"


class _ToolResult(_Block):
    tool_use_id: str
    content: str | ListOf[Annotated[Annotated[_Text, Tag("text")] | Annotated[_Block, Tag("other")], Discriminator(
        lambda block: "text" if _type(block) == "text" else "other")]] | None = None
    is_error: bool | None = None

    def message(self) -> dict[str, Any]:
        """Returns the message of the role `tool`. The chat template decides whether it shows that it is an error."""
        _BLOCK_RULES.check(self.model_extra)
        message = {"role": "tool", "tool_call_id": self.tool_use_id, "content": _joined(self.content or "")}
        return message | ({"is_error": True} if self.is_error else {})


_AnyBlock = Annotated[
    Annotated[_Text, Tag("text")] | Annotated[_Thinking, Tag("thinking")] | Annotated[_ToolUse, Tag("tool_use")]
    | Annotated[_ToolResult, Tag("tool_result")] | Annotated[_Block, Tag("other")], Discriminator(_type)]


class _Message(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | ListOf[_AnyBlock]

    def chat(self) -> list[dict[str, Any]]:
        """Returns the message in the form of chat completions, where each result of a tool is a message of its own."""
        blocks = [] if isinstance(self.content, str) else self.content
        special = {"assistant": (_Thinking, _ToolUse), "user": (_ToolResult,), "system": ()}[self.role]
        for block in blocks:
            if isinstance(block, _Thinking | _ToolUse | _ToolResult) and not isinstance(block, special):
                raise Refused(400, f"a message of the role {self.role} has a block of type {block.type}")
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        if self.role == "assistant":
            calls = [block.call() for block in blocks if isinstance(block, _ToolUse)]
            content = _joined([block for block in blocks if not isinstance(block, _ToolUse)], between="")
            return [{"role": self.role, "content": content} | ({"tool_calls": calls} if calls else {})]
        messages = list[dict[str, Any]]()
        for results, group in itertools.groupby(blocks, lambda block: isinstance(block, _ToolResult)):
            together = list(group)
            messages += [block.message() for block in together if isinstance(block, _ToolResult)] if results else [
                {"role": self.role, "content": _joined(together)}]
        return messages or [{"role": self.role, "content": ""}]


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    def chat(self) -> dict[str, Any]:
        """Returns the tool in OpenAI's form. Raises Refused for a tool that only Anthropic's own models know."""
        if self.type not in (None, "custom") or self.input_schema is None:
            raise Refused(400, f"the tool {self.name:.60} is of type {self.type}, which the policy does not know: "
                          "describe it by an input_schema, and call it yourself")
        _TOOL_RULES.check({name: value for name, value in (self.model_extra or {}).items() if name != "input_examples"})
        return function_tool(name=self.name, description=self.description, parameters=self.input_schema,
                             strict=self.strict, input_examples=(self.model_extra or {}).get("input_examples"))


class _ToolChoice(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["auto", "any", "tool", "none"]
    disable_parallel_tool_use: bool | None = None


class _ThinkingConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class CountRequest(BaseModel):
    """The fields of a request that decide its prompt."""

    model_config = ConfigDict(extra="allow")

    messages: ListOf[_Message] = Field(min_length=1)
    model: str = "policy"
    system: str | ListOf[_Text] | None = None
    tools: ListOf[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    thinking: _ThinkingConfig | None = None
    output_config: dict[str, Any] | None = None

    def prompt(self) -> ChatRequest:
        """Returns the part of a chat completion's request that decides the prompt. Raises Refused."""
        RULES.check(self.model_extra)
        RULES.check({f"output_config.{name}": value for name, value in (self.output_config or {}).items()})
        if self.messages[-1].role == "assistant":
            raise Refused(400, f"the last message is the assistant's, and {ENTIRE}")
        system = [] if self.system is None else [{"role": "system", "content": _joined(self.system)}]
        return ChatRequest.model_validate({
            "messages": [*system, *(one for message in self.messages for one in message.chat())], "model": self.model,
            "tools": None if self.tools is None else [tool.chat() for tool in self.tools]})


class MessagesRequest(CountRequest):
    """The fields of a request that are used. The temperature is always the run's."""

    max_tokens: int = Field(ge=1)
    stop_sequences: ListOf[str] | None = None
    stream: bool | None = False

    def chat(self, longest: int) -> ChatRequest:
        """Returns the request of a chat completion. `longest`: tokens of the longest answer. Raises Refused."""
        longest = min(longest, self.max_tokens)
        if self.thinking is not None and (self.thinking.budget_tokens or longest) < longest:
            raise Refused(400, f"thinking.budget_tokens is {self.thinking.budget_tokens}, and a thought has no limit "
                          f"of its own: an answer has up to {longest} tokens (rollout.max_response_tokens)")
        if self.thinking is not None and self.thinking.display == "omitted":
            raise Refused(400, "thinking.display is omitted, and a thought is handed over as it is: leave it out")
        return self.prompt().model_copy(update={
            "max_tokens": self.max_tokens, "stop": self.stop_sequences, "parallel_tool_calls": self._parallel,
            "tool_choice": "none" if self.tool_choice is not None and self.tool_choice.type == "none" else "auto"})

    @property
    def _parallel(self) -> bool:
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use

    def reply(self, answer: ChatAnswer) -> dict[str, Any]:
        """Returns an answer as a message."""
        return {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": self.model,
                "content": list(self._blocks(answer)), "stop_reason": _stop_reason(answer),
                "stop_sequence": None if answer.parsed.calls else answer.stop,
                "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": len(answer.sample.ids)}}

    def _blocks(self, answer: ChatAnswer) -> Iterator[dict[str, Any]]:
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        thought, text = split_thought(answer.content) if thinks else (None, answer.content)
        if thought is not None:
            yield {"type": "thinking", "thinking": thought.text, "signature": _CLOSED if thought.closed else _CUT}
        if text or not answer.parsed.calls:
            yield {"type": "text", "text": text}
        for number, call in calls_of(answer, parallel=self._parallel):
            yield {"type": "tool_use", "id": number, "name": call.name, "input": call.arguments}


def stream_events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a message as the events of a stream. The entire answer exists already, so each block has one delta."""
    started = {**message, "content": [], "stop_reason": None, "stop_sequence": None,
               "usage": {**message["usage"], "output_tokens": 0}}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(message["content"]):
        empty, deltas = _deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": block | empty}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "usage": message["usage"],
           "delta": {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}}
    yield {"type": "message_stop"}


def error_body(status: int, message: str, kind: str) -> dict[str, Any]:
    """Returns an error in Anthropic's form. Frameworks recognise a prompt that is too long by these words."""
    words = f"prompt is too long: {message}" if kind == "context_length_exceeded" else message
    return {"type": "error", "error": {"type": _ERRORS.get(status, "api_error"), "message": words}}


def _deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the fields that a block begins with, and its deltas."""
    if block["type"] == "text":
        return {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        return {"thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]}]
    written = msgspec.json.encode(block["input"]).decode()
    return {"input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _stop_reason(answer: ChatAnswer) -> str:
    if answer.parsed.calls:
        return "tool_use"
    if answer.stop is not None:
        return "stop_sequence"
    return "max_tokens" if answer.sample.finished == "length" else "end_turn"


def _joined(content: str | Sequence[_Block], between: str = "\n") -> str:
    return content if isinstance(content, str) else between.join(block.text() for block in content)
