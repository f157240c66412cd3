"""Tools that an environment offers, and calls of tools in an answer.

A tool is described as OpenAI's API does, and shown to the model by the model's own chat template. A call comes back in
one of these forms:

    <tool_call>{"name": "add", "arguments": {"n": 5}}</tool_call>                   Hermes, Qwen2.5, Qwen3
    <tool_call><function=add><parameter=n>5</parameter></function></tool_call>      Qwen3.5, Nemotron 3
    {"name": "add", "parameters": {"n": 5}}                                         Llama 3, as the entire answer
    [TOOL_CALLS][{"name": "add", "arguments": {"n": 5}}]                            Mistral, to the end of the answer
    [TOOL_CALLS]add[ARGS]{"n": 5}                                                   later Mistral, again for each call

An environment receives a call as its action, the JSON text of written_call, so sessions with tools are recorded,
rebuilt and checked as all others are.

An answer that opens a call and does not finish it, or whose call has no name, is broken: the agent gets its text, and
the step is invalid. Tags in the thought that an answer begins with are no calls.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec

from envservice.text.response_format import ACTION_END, closed
from services.chat import THINK, THINK_END
from services.files import NOT_JSON

CALL, CALL_END = CALL_TAGS = ("<tool_call>", "</tool_call>")
MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS = MISTRAL = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
"""Special tokens of Mistral's models."""
TAGS = (THINK, THINK_END, "<action>", ACTION_END, *CALL_TAGS, *MISTRAL)
"""Texts that are kept in prompts and answers, even if they are special tokens of the model."""
_MISTRAL_ID = re.compile("[a-zA-Z0-9]{9}")
_CALLS = re.compile(re.escape(CALL) + "(.*?)" + re.escape(CALL_END), re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>\s]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)

Tool = Mapping[str, Any]
"""A tool in OpenAI's form: `type` and `function`, which has `name`, `description` and `parameters` (a JSON schema)."""


Schema = Mapping[str, Any]
"""A JSON schema, or a part of one."""


def tool(name: str, description: str, parameters: Mapping[str, Mapping[str, Any]]) -> Tool:
    """Describes a tool. `parameters` maps the name of each argument, all of them required, to its JSON schema."""
    schema = {"type": "object", "properties": dict(parameters), "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asks for."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    """The id that the model itself gave the call, as Mistral's models do; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """An answer in parts."""

    content: str
    """The text around the calls. Without calls, the entire text as it is."""
    calls: list[ToolCall]
    complete: bool
    """False if a call is broken. Then that call's text is part of the content."""


Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Tagged(msgspec.Struct, frozen=True):
    """A call as Hermes and Qwen write it."""

    name: Name
    arguments: dict[str, Any] | list[Any] | str | None = None


class _WholeAnswer(msgspec.Struct, frozen=True):
    """A call as Llama 3 writes it."""

    name: Name
    parameters: dict[str, Any]


def parse_calls(text: str, tools: Sequence[Tool] = ()) -> ParsedAnswer:
    """Takes the tool calls out of an answer. `tools` are those that were offered: their schemas distinguish texts from
    numbers.

    An answer without tags is a call only if tools were offered.
    """
    thought, spoken = _thought(text)
    content, begins, written = spoken.partition(MISTRAL_CALLS)
    tagged = closed(spoken, CALL_END)
    try:
        if begins:
            return ParsedAnswer(content=(thought + content).strip(), calls=_mistral(written), complete=True)
        calls = [_tagged(body.strip(), tools) for body in _CALLS.findall(tagged)]
    except NOT_JSON:
        return ParsedAnswer(content=text, calls=[], complete=False)
    if not calls and tools and (call := _whole_answer(spoken)) is not None:
        return ParsedAnswer(content=thought, calls=[call], complete=True)
    rest = _CALLS.sub("", tagged) + spoken[len(tagged):]
    return ParsedAnswer(content=(thought + rest).strip() if calls else text, calls=calls, complete=CALL not in rest)


def given_arguments(arguments: object) -> object:
    """Returns the arguments of a call; {} for null, "" and [], by which clients and models say that there are none."""
    return {} if arguments is None or arguments in ("", []) else arguments


def invalid_reason(text: str, *, cut: bool) -> str:
    """Returns why an answer with this text is invalid. `cut`: it reached its limit of tokens."""
    if cut:
        return "cut at its limit of tokens"
    return "a broken call of a tool" if CALL in text or MISTRAL_CALLS in text else "not in the form of the prompt"


def _thought(text: str) -> tuple[str, str]:
    """Returns the thought that an answer begins with, "" if it has none that ends, and the rest."""
    if not text.lstrip().startswith(THINK) or THINK_END not in text:
        return "", text
    end = text.index(THINK_END) + len(THINK_END)
    return text[:end], text[end:]


def _mistral(written: str) -> list[ToolCall]:
    """Reads the text after the first [TOOL_CALLS]. Raises DecodeError if it is not calls alone, or if an id has another
    form than the models' templates demand: they would refuse the entire conversation."""
    if written.lstrip().startswith("["):
        calls = msgspec.json.decode(written.strip(), type=list[ToolCall])
    else:
        parts = [one.partition(MISTRAL_ARGUMENTS) for one in written.split(MISTRAL_CALLS)]
        named = [(*head.partition(MISTRAL_ID), inside) for head, _, inside in parts]
        calls = [ToolCall(name.strip(), msgspec.json.decode(inside, type=dict[str, Any]), number.strip())
                 for name, _, number, inside in named]
    if not calls or not all(call.name and (not call.id or _MISTRAL_ID.fullmatch(call.id)) for call in calls):
        raise msgspec.DecodeError("there is no call, or one without a name, or with another id than a template takes")
    return calls


def _tagged(body: str, tools: Sequence[Tool]) -> ToolCall:
    """Reads the text between the tags. Raises DecodeError if it is no call."""
    function = _FUNCTION.fullmatch(body)
    if function is None:
        call = msgspec.json.decode(body, type=_Tagged)
        arguments = given_arguments(call.arguments)
        if not isinstance(arguments, dict):
            raise msgspec.DecodeError("the arguments are no object")
        return ToolCall(call.name, cast("dict[str, Any]", arguments))
    name, inside = function.groups()
    parameters = closed(inside, "</parameter>")
    if _PARAMETER.sub("", parameters).strip() or inside[len(parameters):].strip():
        raise msgspec.DecodeError("there is text between the parameters")
    schema: Schema = next((_part(function, "parameters") for function in (tool["function"] for tool in tools)
                           if function["name"] == name), {})
    schemas = _part(schema, "properties")
    return ToolCall(name, {parameter: _argument(text, list(_choices(schemas.get(parameter), schema)))
                           for parameter, text in _PARAMETER.findall(parameters)})


def _argument(text: str, choices: Sequence[Schema]) -> Any:
    """Returns the value of a parameter: its text if one of its schemas allows that text, else the text read as JSON."""
    if not any(_of_type(one, "string") or text in _listed(one, "enum") or one.get("const") == text for one in choices):
        return _value(text)
    return None if text == "null" and any(_of_type(one, "null") for one in choices) else text


def _of_type(schema: Schema, kind: str) -> bool:
    return schema.get("type") == kind or kind in _listed(schema, "type")


def _choices(schema: object, root: Schema, seen: frozenset[str] = frozenset()) -> Iterator[Schema]:
    """Yields a schema and the schemas in it that describe the same value: an optional text is a choice of two, and
    pydantic refers to an enumeration that is defined elsewhere in `root`.
    """
    if not isinstance(schema, Mapping):
        return
    this = cast("Schema", schema)
    yield this
    for one in (one for key in ("anyOf", "oneOf", "allOf") for one in _listed(this, key)):
        yield from _choices(one, root, seen)
    place = this.get("$ref")
    if isinstance(place, str) and place.startswith("#/") and place not in seen:
        part = root
        for name in place[2:].split("/"):
            part = _part(part, name)
        yield from _choices(part, root, seen | {place})


def _part(schema: Schema, name: str) -> Schema:
    """Returns a part of a JSON schema, empty if it is not an object: schemas come from the agent as they are."""
    part: object = schema.get(name)
    return cast("Schema", part) if isinstance(part, Mapping) else {}


def _listed(schema: Schema, name: str) -> list[object]:
    items: object = schema.get(name)
    return cast("list[object]", items) if isinstance(items, list) else []


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:
        return text


def _whole_answer(text: str) -> ToolCall | None:
    try:
        call = msgspec.json.decode(text.strip(), type=_WholeAnswer)
    except NOT_JSON:
        return None
    return ToolCall(call.name, call.parameters)


def call_id(call: ToolCall, place: str) -> str:
    """Returns the id that the model gave a call, else one of nine letters and digits, as Mistral's templates want it.

    The same call at the same place gets the same id, so that a replayed conversation has the same tokens.
    """
    return call.id or hashlib.blake2b(f"{place} {written_call(call)}".encode()).hexdigest()[:9]


def written_call(call: ToolCall) -> str:
    """Returns a call as the action that an environment receives: `{"name":"add","arguments":{"a":7,"b":3}}`."""
    return msgspec.json.encode({"name": call.name, "arguments": call.arguments}).decode()


def read_call(action: str) -> ToolCall | None:
    """Returns the call that an action is, or None if it is another text."""
    try:
        return msgspec.json.decode(action, type=ToolCall)
    except NOT_JSON:
        return None
