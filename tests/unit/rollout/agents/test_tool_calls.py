"""Tool calls in answers, and messages and answers in OpenAI's form."""

import re
from pathlib import Path

import numpy as np
import pytest

from envservice.text.tool_calls import ToolCall, parse_calls, read_call
from rollout.agents.completions import ChatRequest, chunks, reply, templated
from rollout.agents.runner import find_agent
from rollout.agents.session import ChatAnswer
from rollout.engine.engine import Sample
from services.errors import UserError

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 7, "b": 3}}\n</tool_call>'


def _bytes(_token: int) -> bytes:
    return b""


@pytest.mark.parametrize("written", ["", "null", "[]", "{}", " ", None, []])
def test_a_call_without_arguments_has_an_empty_object(written):
    """Clients write it in each of these forms, and templates ask for the names in it."""
    request = ChatRequest(messages=[{"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": written}}]}])
    assert request.conversation[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("written", ['""', "null", "[]", "{}"])
def test_a_model_may_write_that_a_call_has_no_arguments(written):
    parsed = parse_calls(f'<tool_call>{{"name": "look", "arguments": {written}}}</tool_call>')
    assert (parsed.calls, parsed.complete) == ([ToolCall("look", {})], True)
    broken = parse_calls('<tool_call>{"name": "look", "arguments": [1]}</tool_call>')
    assert (broken.calls, broken.complete) == ([], False)


def test_calls_are_taken_out_of_an_answer():
    parsed = parse_calls(f"First I add.{CALL}{CALL}")
    assert parsed.calls == [ToolCall("add", {"a": 7, "b": 3})] * 2
    assert (parsed.content, parsed.complete) == ("First I add.", True)


@pytest.mark.parametrize("text", [
    'First.[TOOL_CALLS][{"name": "add", "arguments": {"a": 7}, "id": "0a1b2c3d4"}, {"name": "end", "arguments": {}}]',
    'First.[TOOL_CALLS]add[ARGS]{"a": 7}[TOOL_CALLS]end[ARGS]{}',
    'First.[TOOL_CALLS]add[CALL_ID]0a1b2c3d4[ARGS]{"a": 7}[TOOL_CALLS] end[ARGS] {}'])
def test_mistrals_calls_reach_to_the_end_of_the_answer(text):
    parsed = parse_calls(text)
    assert [(call.name, call.arguments) for call in parsed.calls] == [("add", {"a": 7}), ("end", {})]
    assert (parsed.content, parsed.complete) == ("First.", True)


def test_the_id_that_a_model_gives_its_call_is_the_clients():
    """Else the next prompt would hold another id than the one that was sampled."""
    request = ChatRequest(messages=[{"role": "user", "content": "7 plus 3"}])
    for text, wanted in (('[TOOL_CALLS][{"name": "add", "arguments": {}, "id": "0a1b2c3d4"}]', "0a1b2c3d4"),
                         ('[TOOL_CALLS]add[CALL_ID]0a1b2c3d4[ARGS]{}', "0a1b2c3d4")):
        [call] = reply(answer(text), request, _bytes)["choices"][0]["message"]["tool_calls"]
        assert call["id"] == wanted
    first, second = reply(answer(CALL + CALL), request, _bytes)["choices"][0]["message"]["tool_calls"]
    assert re.fullmatch("[0-9a-f]{9}", first["id"])
    assert first["id"] != second["id"]
    assert reply(answer(CALL + CALL), request, _bytes)["choices"][0]["message"]["tool_calls"] == [first, second]


def test_without_tools_an_object_is_an_answer_like_any_other():
    text = '{"name": "add", "parameters": {"a": 7}}'
    assert parse_calls(text).calls == []
    offered = [{"type": "function", "function": {"name": "add"}}]
    assert parse_calls(text, offered).calls == [ToolCall("add", {"a": 7})]
    assert parse_calls('{"name": "add"}', offered).calls == []


@pytest.mark.parametrize("text", [
    "<tool_call><function=add><parameter=a>7</function></tool_call>", "<tool_call><function=add>7</tool_call>",
    "<tool_call>{}</tool_call>", "<tool_call>add</tool_call>", '<tool_call>{"name": "add"', f"{CALL}<tool_call>",
    '<tool_call>{"name": "add", "arguments": 3}</tool_call>', "[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]add",
    '[TOOL_CALLS][{"name": "add"', '[TOOL_CALLS][ARGS]{"a": 7}', '[TOOL_CALLS]add[ARGS][7]', '[TOOL_CALLS][{"a": 7}]',
    '[TOOL_CALLS][{"name": "add", "arguments": {}, "id": "short"}]'])
def test_an_answer_with_a_broken_call_is_not_whole(text):
    """The agent gets its text, and the step is invalid; a call that is whole beside it stays one."""
    assert not parse_calls(text).complete


@pytest.mark.parametrize("written", [
    '<tool_call>{"name": "add", "arguments": {"a": DEEP}}</tool_call>', '[TOOL_CALLS]add[ARGS]{"a": DEEP}',
    '[TOOL_CALLS][{"name": "add", "arguments": {"a": DEEP}}]', '<tool_call>{"name": "add", "b": DEEP}</tool_call>',
    '{"name": "add", "parameters": {"a": DEEP}}'])
@pytest.mark.parametrize("deep", ["[" * 2000, "[" * 2000 + "]" * 2000, '{"a": ' * 2000], ids=["cut", "lists", "dicts"])
def test_a_call_whose_arguments_nest_without_end_is_a_broken_one(written, deep):
    """A model that repeats itself writes such text. It was a RecursionError, which failed the episode as our fault."""
    parsed = parse_calls(written.replace("DEEP", deep), [{"type": "function", "function": {"name": "add"}}])
    assert not parsed.calls
    assert read_call(f'{{"name": "add", "arguments": {{"a": {deep}}}}}') is None


def test_a_parameter_that_nests_without_end_is_a_text():
    text = f"<tool_call><function=add><parameter=a>{'[' * 2000}</parameter></function></tool_call>"
    assert parse_calls(text).calls == [ToolCall("add", {"a": "[" * 2000})]


@pytest.mark.parametrize("parameters", [
    None, {}, {"properties": None}, {"properties": {"a": True}}, {"properties": []}])
def test_a_tool_with_any_schema_may_be_called(parameters):
    """A client writes it as it likes, and a call was answered by an error of ours."""
    offered = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    text = "<tool_call><function=add><parameter=a>7</parameter></function></tool_call>"
    assert parse_calls(text, [offered]).calls == [ToolCall("add", {"a": 7})]


@pytest.mark.parametrize(("schema", "text", "value"), [
    ({"type": "string"}, "2024", "2024"), ({"type": "string"}, "null", "null"),
    ({"type": ["string", "null"]}, "2024", "2024"), ({"type": ["string", "null"]}, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "2024", "2024"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "2024", "2024"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "2024", 2024), ({"type": ["integer", "null"]}, "null", None),
    ({"anyOf": "string"}, "2024", 2024), ({"type": {}, "oneOf": [True]}, "2024", 2024)])
def test_a_parameter_that_may_be_a_text_stays_one(schema, text, value):
    """An optional text is a choice of types in its schema, and its 2024 became a number."""
    offered = {"type": "function", "function": {"name": "find", "parameters": {"properties": {"year": schema}}}}
    written = f"<tool_call><function=find><parameter=year>{text}</parameter></function></tool_call>"
    assert parse_calls(written, [offered]).calls == [ToolCall("find", {"year": value})]


@pytest.mark.parametrize(("schema", "text", "value"), [
    ({"$ref": "#/$defs/Year"}, "2024", "2024"), ({"allOf": [{"$ref": "#/$defs/Year"}], "default": ""}, "2024", "2024"),
    ({"anyOf": [{"$ref": "#/$defs/Year"}, {"type": "null"}]}, "null", None),
    ({"$ref": "#/$defs/Loop"}, "2024", 2024), ({"$ref": "#/no/where"}, "2024", 2024),
    ({"$ref": "https://elsewhere/schema"}, "2024", 2024), ({"$ref": 7}, "2024", 2024),
    ({"enum": ["2024", "2025"]}, "2024", "2024"), ({"const": "2024"}, "2024", "2024"),
    ({"enum": ["newest", 2024]}, "2024", 2024), ({"enum": ["newest", 2024]}, "newest", "newest")])
def test_a_parameter_is_a_text_wherever_its_schema_says_so(schema, text, value):
    """Pydantic refers to an enumeration by `$ref`, and its "2024" became a number."""
    parameters = {"properties": {"year": schema}, "$defs": {
        "Year": {"type": "string", "enum": ["2024", "2025"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}}}
    offered = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    written = f"<tool_call><function=find><parameter=year>{text}</parameter></function></tool_call>"
    assert parse_calls(written, [offered]).calls == [ToolCall("find", {"year": value})]


@pytest.mark.parametrize("written", [
    CALL, 'add', '{"name": "add", "parameters": {"a": 7, "b": 3}}',
    '[TOOL_CALLS][{"name": "add", "arguments": {"a": 7, "b": 3}}]'])
def test_tags_in_a_thought_are_no_calls(written):
    """A reasoning model thinks about the form before it uses it, and may think of a call that it does not make."""
    tools = [{"type": "function", "function": {"name": "add"}}]
    for thought in ("<think>I need <tool_call> tags.</think>", f"<think>\nShall I? {CALL} No.\n</think>"):
        parsed = parse_calls(thought + written, tools)
        assert parsed.calls == ([] if written == "add" else [ToolCall("add", {"a": 7, "b": 3})])
        assert (parsed.content, parsed.complete) == (thought + (written if written == "add" else ""), True)


def answer(text):
    ids = np.array([5, 6], dtype=np.int32)
    sample = Sample(ids=ids, logprobs=np.array([-0.5, -1.5], dtype=np.float32), spans=[], finished="stop")
    return ChatAnswer(text=text, parsed=parse_calls(text), prompt_tokens=3, sample=sample)


def test_an_answer_with_a_call_is_openais():
    request = ChatRequest(messages=[{"role": "user", "content": "7 plus 3"}], logprobs=True)
    completion = reply(answer(CALL), request, lambda token: f"<{token}>".encode())
    choice = completion["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":7,"b":3}'}
    assert [(token["token"], token["logprob"]) for token in choice["logprobs"]["content"]] == [
        ("<5>", -0.5), ("<6>", -1.5)]
    assert completion["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert '"index":0' in next(chunks(completion, request))


def test_messages_reach_the_template_as_templates_expect_them():
    """Arguments of calls as objects, text parts as one text, and no null."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 7}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert templated([{"role": "developer", "content": "x"}]) == [{"role": "system", "content": "x"}]
    message = {"role": "assistant", "content": "x"}
    for calls in (None, []):
        assert templated([{**message, "tool_calls": calls, "refusal": None}]) == [message]
    assert templated([asked, {"role": "user", "content": parts}]) == [
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 7}}}]},
        {"role": "user", "content": "ab"}]


def test_arguments_of_an_agent_that_nest_without_end_stay_a_text():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "[" * 2000}}
    [shown] = templated([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert shown["tool_calls"] == [call]


@pytest.mark.parametrize(("name", "problem"), [
    ("agent", "no agent 'agent'"), ("nowhere.to_be:found", "cannot be imported"), ("json:agent", "json has no agent"),
    ("json:__name__", "is of type str, not a function"),
    ("json:dumps", "json:dumps is no async function; write `async def dumps`, or say in its annotation that it returns "
     "an Awaitable"),
    ("asyncio:sleep", r"asyncio:sleep cannot be called with \(task, llm, env\) \(too many positional arguments\)"),
    ("collections:Counter", "is a class; give agent.name an async function, or an object made of it")])
def test_an_agent_that_cannot_be_found_is_one_line(name, problem):
    with pytest.raises(UserError, match=problem):
        find_agent(name)


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("returns", ["Awaitable[None]", "Coroutine[None, None, None]", "asyncio.Future[None]"])
async def test_a_plain_function_that_says_it_returns_an_awaitable_is_an_agent(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, returns: str):
    module = f"says_{abs(hash((first, returns)))}"
    (tmp_path / f"{module}.py").write_text(
        f"{first}import asyncio\nfrom collections.abc import Awaitable, Coroutine\n\n\nasync def play(task):\n"
        f"    print(task)\n\n\ndef agent(task, llm, env) -> {returns}:\n    return play(task)\n")
    monkeypatch.syspath_prepend(tmp_path)
    await find_agent(f"{module}:agent")("a task", None, None)
