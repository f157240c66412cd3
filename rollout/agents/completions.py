"""OpenAI's chat completions: the fields of a request, and the form of an answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from envservice.text.tool_calls import ToolCall, given_arguments
from rollout.agents.refusals import CONSTRAINED, ENTIRE, RENDERED, TEXT_ALONE, FieldRules, ListOf
from rollout.agents.session import ChatAnswer
from services.chat import Message
from services.files import NOT_JSON

_SAMPLED = "an answer ends where the policy ends it, or at max_tokens: leave it out"
_RECORDED = "the run's archive has the tokens: leave it out"
_REFUSED = {
    **dict.fromkeys(("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
                     "logit_bias", "allowed_token_ids", "bad_words", "logits_processors"), CONSTRAINED),
    **dict.fromkeys(("continue_final_message", "echo"), ENTIRE),
    **dict.fromkeys(("min_tokens", "ignore_eos", "thinking_token_budget"), _SAMPLED),
    **dict.fromkeys(("chat_template_kwargs", "reasoning_effort", "enable_thinking", "thinking", "verbosity",
                     "include_reasoning", "add_special_tokens"), RENDERED),
    **dict.fromkeys(("modalities", "audio", "web_search_options"), TEXT_ALONE),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs"), _RECORDED),
    **dict.fromkeys(("best_of", "use_beam_search"), "each call is one step, whose answer is sampled: leave it out"),
    **dict.fromkeys(("functions", "function_call"), "they are the older form of tools: send tools"),
    "truncate_prompt_tokens": "a prompt is read whole: shorten the messages",
    "skip_special_tokens": "special tokens are no text of an answer: leave it out",
    "documents": "the policy reads messages alone: write them in a message",
    "chat_template": "it is the run's: set model.chat_template in its config"}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "length_penalty")
"""Values for sampling, which are ignored: the run has its own."""
RULES = FieldRules(
    ignored=frozenset((
        *SAMPLING, "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction", "request_id", "priority", "cache_salt", "guided_decoding_backend",
        "guided_whitespace_pattern", "spaces_between_special_tokens", "mm_processor_kwargs", "media_io_kwargs",
        "provider", "usage")),
    refused=_REFUSED,
    idle={"prompt_logprobs": (None,), "best_of": (None, 1), "skip_special_tokens": (None, True),
          "include_reasoning": (None, True), "modalities": (None, [], ["text"]),
          "function_call": (None, "none", "auto")})
"""The fields that ChatRequest does not read. Most of them are vLLM's own."""
_MESSAGE_FIELDS = {**dict.fromkeys(("prefix", "partial"), ENTIRE), "audio": TEXT_ALONE,
                   "function_call": "it is the older form of tool_calls: send those"}
"""Fields of a message that would change an answer, but that chat templates ignore -> why they are refused."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str = "text"
    text: str | None = None


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    arguments: str | dict[str, Any] | list[Any] | None = None


class _Call(BaseModel):
    model_config = ConfigDict(extra="allow")

    function: _Function


class ChatMessage(BaseModel):
    """The fields of a message whose form we rely on. Others go to the chat template as they came."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | ListOf[_Part] | None = None
    tool_calls: ListOf[_Call] | None = None

    @property
    def parts(self) -> list[_Part]:
        """The parts of the content, if it comes in parts."""
        return self.content if isinstance(self.content, list) else []


class ChatRequest(BaseModel):
    """The fields of a request that are used. The temperature is always the run's."""

    model_config = ConfigDict(extra="allow")

    messages: ListOf[ChatMessage] = Field(min_length=1)
    model: str = "policy"
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = True
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=1, ge=1)
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[int] | None = None
    include_stop_str_in_output: bool | None = False
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    add_generation_prompt: bool | None = True

    def refusal(self) -> str | None:
        """Returns why this endpoint cannot serve the request, or None."""
        if self.n not in (None, 1):
            return f"n is {self.n}, and each call is one step: ask for one answer"
        if self.response_format is not None and self.response_format.get("type", "text") != "text":
            return f"response_format is set, and {CONSTRAINED}"
        if self.top_logprobs:
            return f"top_logprobs is {self.top_logprobs}, and only sampled tokens have logprobs: leave it out"
        if isinstance(self.tool_choice, dict) and cast("Message", self.tool_choice).get("type") == "allowed_tools":
            return "tool_choice is of type allowed_tools, and the prompt shows all tools: send only those"
        if reason := RULES.refusal(self.model_extra):
            return reason
        if self.add_generation_prompt is False:
            return f"add_generation_prompt is false, and {ENTIRE}"
        if unread := [part.type for message in self.messages for part in message.parts if part.text is None]:
            return f"a message has a part of type {unread[0]}, and the policy reads text alone: leave it out"
        return next((f"{name} is set in a message, and {reason}" for message in self.messages
                     for name, reason in _MESSAGE_FIELDS.items() if (message.model_extra or {}).get(name)), None)

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates expect them."""
        return templated([message.model_dump(exclude_unset=True) for message in self.messages])

    @property
    def limit(self) -> int | None:
        """Longest answer in tokens; None if the request sets no limit."""
        return self.max_completion_tokens or self.max_tokens


def templated(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages as chat templates expect them.

    Arguments of tool calls become objects, and text parts one text. The role `developer`, OpenAI's newer name that most
    templates do not know, becomes `system`. Fields without a value are left out: OpenAI's client writes every field,
    and many templates only ask whether there is a `tool_calls`.
    """
    return [_templated(message) for message in messages]


def _templated(message: dict[str, Any]) -> dict[str, Any]:
    out = {name: value for name, value in message.items() if value is not None and (name != "tool_calls" or value)}
    if out.get("role") == "developer":
        out["role"] = "system"
    if isinstance(out.get("content"), list):
        out["content"] = "".join(part.get("text", "") for part in out["content"])
    out.setdefault("content", "")
    if "tool_calls" in out:
        out["tool_calls"] = [{**call, "function": {**call["function"], "arguments": _object(call)}}
                             for call in out["tool_calls"]]
    return out


def _object(call: dict[str, Any]) -> Any:
    """Returns the arguments of a call as an object or a list, or as they came if they are neither.

    So a stored conversation, which comes here again, stays as it is.
    """
    arguments = call["function"].get("arguments")
    try:
        value = given_arguments(
            msgspec.json.decode(arguments.strip() or "null") if isinstance(arguments, str) else arguments)
    except NOT_JSON:
        return arguments
    return value if isinstance(value, dict | list) else arguments


def reply(answer: ChatAnswer, request: ChatRequest, bytes_of: Callable[[int], bytes]) -> dict[str, Any]:
    """Returns the body of a chat completion. `bytes_of` returns a token's own bytes."""
    choice: dict[str, Any] = {"index": 0, "message": answer_message(answer, request), "finish_reason": _finish(answer),
                              "logprobs": None}
    if request.logprobs:
        sampled = zip(answer.sample.ids.tolist(), answer.sample.logprobs.tolist(), strict=True)
        choice["logprobs"] = {"content": [_token(bytes_of(token), logprob) for token, logprob in sampled]}
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time()),
            "model": request.model, "choices": [choice], "usage": _usage(answer)}


def chunks(completion: dict[str, Any], request: ChatRequest) -> Iterator[str]:
    """Yields a chat completion as server-sent events. The entire answer exists already, so it is sent in one piece."""
    head = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = completion["choices"][0]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{**call, "index": i} for i, call in enumerate(delta["tool_calls"])]
    parts: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": choice["logprobs"]}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}]
    if (request.stream_options or {}).get("include_usage"):
        parts.append({"choices": [], "usage": completion["usage"]})
    for part in parts:
        yield f"data: {msgspec.json.encode(head | part).decode()}\n\n"
    yield "data: [DONE]\n\n"


def function_tool(**shown: Any) -> dict[str, Any]:
    """Returns a tool in the form of chat completions. Fields that are None are left out."""
    return {"type": "function", "function": {name: one for name, one in shown.items() if one is not None}}


def calls_of(answer: ChatAnswer, *, parallel: bool | None) -> list[tuple[str, ToolCall]]:
    """Returns the calls of an answer with their ids. Without `parallel` those after the first are left out, as vLLM
    does; None counts as true."""
    calls = answer.parsed.calls[:1 if parallel is False else None]
    return [(answer.call_id(place), call) for place, call in enumerate(calls)]


def written_arguments(call: ToolCall) -> str:
    """Returns the arguments of a call as OpenAI's API writes them: as JSON text."""
    return msgspec.json.encode(call.arguments).decode()


def answer_message(answer: ChatAnswer, request: ChatRequest) -> dict[str, Any]:
    """Returns an answer as the message of a chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or None}
    if answer.parsed.calls:
        message["tool_calls"] = [
            {"id": number, "type": "function", "function": {"name": call.name, "arguments": written_arguments(call)}}
            for number, call in calls_of(answer, parallel=request.parallel_tool_calls)]
    elif message["content"] is None:
        message["content"] = ""
    return message


def _finish(answer: ChatAnswer) -> str:
    return "tool_calls" if answer.parsed.calls else answer.sample.finished


def _usage(answer: ChatAnswer) -> dict[str, int]:
    given = len(answer.sample.ids)
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": given,
            "total_tokens": answer.prompt_tokens + given}


def _token(own: bytes, logprob: float) -> dict[str, Any]:
    return {"token": own.decode(errors="replace"), "logprob": logprob, "bytes": list(own), "top_logprobs": []}
