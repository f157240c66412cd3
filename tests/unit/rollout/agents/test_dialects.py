"""The dialects of the endpoint, as the real clients of OpenAI and of Anthropic speak them."""

from __future__ import annotations

from functools import cached_property

import anthropic
import httpx
import httpx2
import msgspec
import numpy as np
import openai
import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from scripted_engine import ScriptedEngine

from envservice.text.plain_prompts import PLAIN
from envservice.text.tool_calls import parse_calls
from rollout.agents.app import create_app
from rollout.agents.completions import ChatRequest, answer_message
from rollout.agents.messages import MessagesRequest
from rollout.agents.responses import ResponsesRequest
from rollout.agents.session import AgentSession, ChatAnswer, StoredAnswers
from rollout.engine.sample import Sample
from rollout.prompt_renderer import PromptRenderer

HERMES = ("{% if tools %}[tools]{{ tools | tojson }}<|end|>{% endif %}"
          "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% for call in m['tool_calls'] or () %}"
          "<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
          "{% if add_generation_prompt %}[assistant]{% endif %}")
"""Writes a call as a model writes it, so that a call in the history is the tokens that were sampled."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "add", "arguments": {"n": 2}}</tool_call>'
ANSWERS = [f"<think>\nOne\n </think>\n\nI add.{CALL}", "<think>so</think> three\n", "five"]
"""A thought, a text and a call; a thought and a text with white space; a text."""
OPENAI = openai.AsyncOpenAI(base_url="http://episode/v1", api_key="key", max_retries=0)
ANTHROPIC = anthropic.AsyncAnthropic(base_url="http://episode", api_key="key", max_retries=0)
SYSTEM, QUESTION, RESULT, AGAIN = "Be brief.", "1 plus 2?", "3", "2 more?"
ROWS = [f"[system]Be brief.<|end|>[user]{QUESTION}<|end|>[assistant]{ANSWERS[0]}<|end|>[tool]3<|end|>[assistant]",
        f"{ANSWERS[1]}<|end|>[user]{AGAIN}<|end|>[assistant]"]


@pytest.fixture(scope="module")
def hermes():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = HERMES
    return PromptRenderer(template=PLAIN["full"](2), tokenizer=tokenizer)


@pytest.fixture
def episode(hermes, ticket):
    """`episode(*answers)` returns clients of both providers, and the session that their calls are recorded in."""
    def made(*answers, **named):
        return Clients(AgentSession(**{"prompt_tokens": 1000, "response_tokens": 256} | named, ticket=ticket,
                                    engine=ScriptedEngine(hermes, answers), text=hermes, max_calls=9))
    return made


class Clients:
    """Clients of both providers, and the session that their calls are recorded in."""

    def __init__(self, llm) -> None:
        self.llm, self._app = llm, create_app({"key": (llm, None)})

    @cached_property
    def http(self):
        return httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://episode")

    @cached_property
    def openai(self):
        return OPENAI.with_options(http_client=self.http)

    @cached_property
    def anthropic(self):
        return ANTHROPIC.with_options(http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(self._app)))


async def play_completions(clients):
    history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for following in (lambda message: {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT},
                      lambda _: {"role": "user", "content": AGAIN}, None):
        reply = await clients.openai.chat.completions.create(
            model="policy", messages=history, tools=[{"type": "function", "function": FUNCTION}])
        message = reply.choices[0].message
        history += [message.model_dump(), following(message)] if following else []
    return message.content


async def play_messages(clients, *, stream=False, **named):
    history = [{"role": "user", "content": QUESTION}]
    for following in (lambda made: {"type": "tool_result", "tool_use_id": made[-1].id, "content": [
                          {"type": "text", "text": RESULT, "cache_control": {"type": "ephemeral"}}]},
                      lambda _: {"type": "text", "text": AGAIN}, None):
        named |= {"model": "policy", "max_tokens": 200, "system": SYSTEM, "tools": [TOOL], "messages": history}
        if stream:
            async with clients.anthropic.messages.stream(**named) as events:
                message = await events.get_final_message()
        else:
            message = await clients.anthropic.messages.create(**named)
        if following:
            history += [{"role": "assistant", "content": message.content},
                        {"role": "user", "content": [following(message.content)]}]
    return message.content[0].text


async def play_responses(clients, *, stream=False, stored=False, **named):
    items, previous = [{"role": "user", "content": QUESTION}], None
    for following in (lambda made: {"type": "function_call_output", "call_id": made[-1].call_id, "output": RESULT},
                      lambda _: {"role": "user", "content": [{"type": "input_text", "text": AGAIN}]}, None):
        named |= {"model": "policy", "instructions": SYSTEM, "tools": [{"type": "function", **FUNCTION}],
                  "input": items, "previous_response_id": previous, "store": stored}
        if stream:
            async with clients.openai.responses.stream(**named) as events:
                response = await events.get_final_response()
        else:
            response = await clients.openai.responses.create(**named)
        if following:
            earlier = [] if stored else [*items, *(item.model_dump() for item in response.output)]
            items, previous = [*earlier, following(response.output)], response.id if stored else None
    return response.output_text


@pytest.mark.parametrize(("play", "named"), [
    (play_completions, {}), (play_messages, {}), (play_messages, {"stream": True}),
    (play_messages, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    (play_messages, {"thinking": {"type": "adaptive"}, "stream": True}),
    (play_responses, {}), (play_responses, {"stream": True}), (play_responses, {"stored": True}),
    (play_responses, {"include": ["reasoning.encrypted_content"]})],
    ids=lambda value: value.__name__ if callable(value) else " ".join(map(str, value)))
async def test_a_conversation_is_the_same_row_in_each_dialect(episode, hermes, play, named):
    """A system prompt, a thought, a call of a tool and its result: the tokens are those of a chat completion."""
    clients = episode(*ANSWERS)
    assert await play(clients, **named) == ANSWERS[2]
    steps = clients.llm.steps
    assert [(step.follows, step.broke, step.valid) for step in steps] == [
        (None, False, True), (0, False, True), (1, False, True)]
    row = hermes.tokenizer.decode(steps[-1].prompt_ids.tolist())
    assert row.partition("<|end|>")[2] == "".join(ROWS)
    assert row.startswith('[tools][{"type": "function", "function": {"name": "add", "description": "Adds.", ')
    assert [step.observation for step in steps] == [QUESTION, RESULT, AGAIN]


def sampled(text):
    """The answer of a call with a tool."""
    sample = Sample(ids=np.zeros(9, np.int32), logprobs=np.zeros(9, np.float32), spans=[], finished="stop")
    return ChatAnswer(text=text, parsed=parse_calls(text, [{"type": "function", "function": FUNCTION}]),
                      prompt_tokens=3, sample=sample)


PIECES = ["<think>", "</think>", "a", " ", "\n", CALL, "<tool_call>"]


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.booleans())
def test_any_answer_that_comes_back_is_the_message_that_it_is_in_a_chat_completion(pieces, thinks):
    """Also with tags that close nothing, and with a thought alone."""
    answer, user = sampled("".join(pieces)), {"role": "user", "content": "x"}
    asked = ChatRequest(messages=[user])
    wanted = ChatRequest(messages=[user, answer_message(answer, asked), user]).conversation
    first = MessagesRequest(messages=[user], max_tokens=9, thinking={"type": "adaptive" if thinks else "disabled"})
    blocks = first.reply(answer)["content"]
    again = MessagesRequest(messages=[user, {"role": "assistant", "content": blocks}, user], max_tokens=9)
    assert again.chat(longest=9).conversation == wanted
    first = ResponsesRequest(input="x", include=["reasoning.encrypted_content"] * thinks)
    items = [item | {"content": None} if thinks and item["type"] == "reasoning" else item
             for item in first.reply(answer, thought_tokens=0)["output"]]
    assert ResponsesRequest(input=[user, *items, user]).chat(StoredAnswers()).conversation == wanted
    stored = StoredAnswers(conversations={"r": first.continued(asked, answer)})
    assert ResponsesRequest(input="x", previous_response_id="r").chat(stored).conversation == wanted


async def test_an_episode_may_change_its_dialect_with_each_call(episode):
    """Two turns by chat completions, the third by Anthropic's client, the fourth by the Responses API."""
    clients = episode("a", "b", "c", "d")
    history = [{"role": "user", "content": QUESTION}]
    for number in range(4):
        if number < 2:
            reply = await clients.openai.chat.completions.create(model="policy", messages=history)
            text = reply.choices[0].message.content
        elif number == 2:
            message = await clients.anthropic.messages.create(model="policy", max_tokens=9, messages=history)
            text = message.content[0].text
        else:
            text = (await clients.openai.responses.create(model="policy", input=history)).output_text
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": AGAIN}]
    assert [step.follows for step in clients.llm.steps] == [None, 0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_that_was_cut_comes_back_without_its_closing_tag(episode, stream):
    """Its block says so, in the field that clients send back unread."""
    clients = episode("<think>hm", "so", "<think>hm", "so")
    first, thinking = {"role": "user", "content": QUESTION}, {"type": "adaptive"}
    named = {"model": "policy", "max_tokens": 9, "thinking": thinking}
    if stream:
        async with clients.anthropic.messages.stream(messages=[first], **named) as events:
            message = await events.get_final_message()
    else:
        message = await clients.anthropic.messages.create(messages=[first], **named)
    thought, text = message.content
    assert (thought.thinking, text.text) == ("hm", "")
    answer = {"role": "assistant", "content": message.content}
    await clients.anthropic.messages.create(messages=[first, answer, first], **named)
    response = await clients.openai.responses.create(model="policy", input=[first])
    await clients.openai.responses.create(model="policy", input=[first, *response.output, first])
    assert [step.follows for step in clients.llm.steps] == [None, 0, None, 2]


@pytest.mark.parametrize(("answer", "named", "reason", "text"), [
    ("six", {}, ("end_turn", None), "six"), ("six; go", {"stop_sequences": ["x", ";"]}, ("stop_sequence", "x"), "si"),
    (CALL, {"tools": [TOOL], "stop_sequences": ["</tool"]}, ("stop_sequence", "</tool"), CALL.partition("</tool")[0]),
    (CALL, {"tools": [TOOL], "tool_choice": {"type": "none"}}, ("end_turn", None), CALL)])
async def test_anthropics_client_reads_why_an_answer_ended(episode, answer, named, reason, text):
    clients = episode(answer)
    message = await clients.anthropic.messages.create(
        model="policy", max_tokens=64, messages=[{"role": "user", "content": QUESTION}], **named)
    assert (message.stop_reason, message.stop_sequence) == reason
    assert [block.text for block in message.content] == [text]
    [step] = clients.llm.steps
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(step.prompt_ids), len(step.response_ids))


class CutEngine(ScriptedEngine):
    """Ends each answer at its limit of tokens."""

    async def sample(self, prompt_ids, **named):
        sample = await super().sample(prompt_ids, **named)
        return msgspec.structs.replace(sample, ids=sample.ids[:-1], logprobs=sample.logprobs[:-1], finished="length")


async def test_an_answer_that_was_cut_is_told_in_each_dialect(episode):
    clients = episode()
    clients.llm.engine = CutEngine(clients.llm.text, ["abc"] * 3)
    message = await clients.anthropic.messages.create(
        model="policy", max_tokens=3, messages=[{"role": "user", "content": QUESTION}])
    assert message.stop_reason == "max_tokens"
    response = await clients.openai.responses.create(model="policy", input=QUESTION, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason, response.output_text) == (
        "incomplete", "max_output_tokens", "abc")
    events = [event async for event in await clients.openai.responses.create(
        model="policy", input=QUESTION, max_output_tokens=3, stream=True)]
    assert (events[-1].type, events[-1].response.output_text) == ("response.incomplete", "abc")


async def test_calls_after_the_first_are_left_out_for_a_client_that_takes_one(episode):
    clients = episode(CALL + CALL, CALL + CALL, CALL + CALL)
    asked = {"model": "policy", "max_tokens": 99, "tools": [TOOL], "messages": [{"role": "user", "content": QUESTION}]}
    both = await clients.anthropic.messages.create(**asked)
    assert [(block.type, block.name, block.input) for block in both.content] == [("tool_use", "add", {"n": 2})] * 2
    assert both.content[0].id != both.content[1].id
    one = await clients.anthropic.messages.create(**asked, tool_choice={
        "type": "auto", "disable_parallel_tool_use": True})
    assert len(one.content) == 1
    response = await clients.openai.responses.create(
        model="policy", input=QUESTION, tools=[{"type": "function", **FUNCTION}], parallel_tool_calls=False)
    assert [item.type for item in response.output] == ["function_call"]


async def test_results_of_several_calls_are_messages_of_their_own(episode):
    """Anthropic's client sends them in one message, and the Responses API after all calls."""
    clients = episode(CALL + CALL, "so", "so")
    first = {"role": "user", "content": QUESTION}
    named = {"model": "policy", "max_tokens": 99, "tools": [TOOL]}
    message = await clients.anthropic.messages.create(messages=[first], **named)
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": str(number), "is_error": number == 4}
               for number, block in enumerate(message.content, 3)]
    await clients.anthropic.messages.create(messages=[
        first, {"role": "assistant", "content": message.content},
        {"role": "user", "content": [*results, {"type": "text", "text": AGAIN}]}], **named)
    calls = [{"type": "function_call", "call_id": str(number), "name": "add", "arguments": '{"n": 2}'}
             for number in (3, 4)]
    outputs = [{"type": "function_call_output", "call_id": str(number), "output": str(number)} for number in (3, 4)]
    await clients.openai.responses.create(model="policy", tools=[{"type": "function", **FUNCTION}],
                                          input=[first, *calls, *outputs, {"role": "user", "content": AGAIN}])
    steps = clients.llm.steps
    assert [step.follows for step in steps] == [None, 0, 0]
    assert steps[1].prompt_ids.tolist() == steps[2].prompt_ids.tolist()
    assert clients.llm.text.tokenizer.decode(steps[1].prompt_ids.tolist()).endswith(
        f"[tool]3<|end|>[tool]4<|end|>[user]{AGAIN}<|end|>[assistant]")


async def test_texts_of_one_message_do_not_run_into_each_other(episode):
    """litellm makes one message of two that follow each other, and instructions may come in parts."""
    clients = episode("so", "so")
    parts, items = ([{"type": kind, "text": text} for text in ("One.", "Two.")] for kind in ("text", "input_text"))
    await clients.anthropic.messages.create(model="policy", max_tokens=9, system=parts,
                                            messages=[{"role": "user", "content": parts}])
    await clients.openai.responses.create(model="policy", input=[
        {"role": "developer", "content": items}, {"role": "user", "content": items}])
    assert [clients.llm.text.tokenizer.decode(step.prompt_ids.tolist()) for step in clients.llm.steps] == [
        "[system]One.\nTwo.<|end|>[user]One.\nTwo.<|end|>[assistant]"] * 2


async def test_items_of_two_answers_are_two_messages(episode):
    """An agent may ask again without a message between."""
    clients = episode("so")
    spoken = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    await clients.openai.responses.create(model="policy", input=[
        {"role": "user", "content": "x"}, thought, spoken, spoken, thought, spoken])
    prompt = clients.llm.text.tokenizer.decode(clients.llm.steps[0].prompt_ids.tolist())
    assert prompt.partition("[assistant]")[2] == (
        "<think>hm</think>a<|end|>[assistant]a<|end|>[assistant]<think>hm</think>a<|end|>[assistant]")


async def test_a_response_counts_the_tokens_of_its_thought(episode):
    """Bytes are tokens here: the tags have 7 and 8."""
    clients = episode("<think>hm</think>so", "so")
    counted = [(await clients.openai.responses.create(model="policy", input="x")).usage for _ in range(2)]
    assert [usage.output_tokens_details.reasoning_tokens for usage in counted] == [17, 0]
    assert [usage.output_tokens for usage in counted] == [20, 3]


async def test_a_prompt_is_counted_without_a_call(episode):
    clients = episode("so", prompt_tokens=9999)
    asked = {"model": "policy", "system": SYSTEM, "tools": [TOOL],
             "messages": [{"role": "user", "content": QUESTION}]}
    counted = await clients.anthropic.messages.count_tokens(**asked)
    assert clients.llm.steps == []
    await clients.anthropic.messages.create(**asked, max_tokens=9)
    assert counted.input_tokens == len(clients.llm.steps[0].prompt_ids)
    asked["messages"] = [{"role": "user", "content": "x" * 20_000}]
    assert (await clients.anthropic.messages.count_tokens(**asked)).input_tokens > 20_000


async def test_a_response_of_another_episode_or_one_that_was_not_stored_is_refused(episode):
    clients, others = episode("a", "b"), episode("c")
    unstored = await clients.openai.responses.create(model="policy", input="x", store=False)
    foreign = await others.openai.responses.create(model="policy", input="x")
    for previous in (unstored.id, foreign.id):
        with pytest.raises(openai.BadRequestError, match="this episode has no stored response resp_") as refused:
            await clients.openai.responses.create(model="policy", input="x", previous_response_id=previous)
        assert refused.value.code == "previous_response_not_found"
    assert len(clients.llm.steps) == 1


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {}])
async def test_items_of_stored_answers_may_be_named_by_their_ids(episode, kind):
    """Vercel's AI SDK does so unless it is told not to store."""
    clients = episode(*ANSWERS)
    named = {"model": "policy", "instructions": SYSTEM, "tools": [{"type": "function", **FUNCTION}]}
    items = [{"role": "user", "content": QUESTION}]
    for following in (lambda answer: {"type": "function_call_output", "call_id": answer[-1].call_id, "output": RESULT},
                      lambda _: {"role": "user", "content": AGAIN}):
        output = (await clients.openai.responses.create(**named, input=items)).output
        items += [*({"id": item.id} | kind for item in output), following(output)]
    await clients.openai.responses.create(**named, input=items)
    assert [step.follows for step in clients.llm.steps] == [None, 0, 1]
    with pytest.raises(openai.BadRequestError, match="this episode has no stored item rs_none: send the item itself"):
        await clients.openai.responses.create(**named, input=[{"id": "rs_none"} | kind])


@pytest.mark.parametrize("written", ["5", "true", '"x"', '"5"', "[1]", '{"n": 2}', "no JSON"])
def test_a_stored_conversation_keeps_the_arguments_of_its_calls(written):
    """Else a call whose arguments are a number ends the next request with an error of our own."""
    user, call = {"role": "user", "content": "x"}, {"type": "function_call", "call_id": "a", "name": "add"}
    first = ResponsesRequest(input=[user, call | {"arguments": written}]).chat(StoredAnswers()).conversation
    stored = StoredAnswers(conversations={"r": first})
    again = ResponsesRequest(input="y", previous_response_id="r").chat(stored).conversation
    assert again[:-1] == first


async def test_instructions_are_those_of_each_call(episode):
    clients = episode("a", "b")
    first = await clients.openai.responses.create(model="policy", input="x", instructions="One.")
    await clients.openai.responses.create(model="policy", input="y", instructions="Two.", previous_response_id=first.id)
    assert [clients.llm.text.tokenizer.decode(step.prompt_ids.tolist()) for step in clients.llm.steps] == [
        "[system]One.<|end|>[user]x<|end|>[assistant]",
        "[system]Two.<|end|>[user]x<|end|>[assistant]a<|end|>[user]y<|end|>[assistant]"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(("named", "reason"), [
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "a message has a part of type image, and the policy reads"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]}]},
     "a message has a part of type image"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
                   {"role": "user", "content": "x"}]}, "a message has a part of type redacted_thinking"),
    ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x", "signature": ""}]}]},
     "a message of the role user has a block of type thinking"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I"}]},
     "the last message is the assistant's, and each answer is a whole message"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
     "the tool web_search is of type web_search_20250305, which the policy does not know"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "defer_loading is set, and the prompt shows all tools"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
     r"thinking.budget_tokens is 1024, .* up to 1500 tokens \(rollout.max_response_tokens\)"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display is omitted"),
    ({"output_config": {"effort": "low"}}, "output_config.effort is set, and it is the run's"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format .* not constrained"),
    ({"container": "x"}, "container is set, and there is no code execution here"),
    ({"extra_body": {"context_management": {"edits": [1]}}}, "context_management is set, and a prompt is read whole"),
    ({"extra_body": {"an_invention": 1}}, "an_invention is set, and this endpoint does not have it"),
    ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1")])
async def test_a_field_of_anthropics_that_would_do_nothing_is_refused(episode, named, reason):
    clients = episode("so", response_tokens=1500)
    asked = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": QUESTION}]}
    with pytest.raises(anthropic.BadRequestError, match=reason) as refused:
        await clients.anthropic.messages.create(**asked | named)
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert clients.llm.steps == []


@pytest.mark.parametrize(("named", "reason"), [
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "a message has a part of type input_image, and the policy reads"),
    ({"input": [{"type": "computer_call", "id": "x"}]}, "the input has an item of type computer_call"),
    ({"input": [{"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "x"}]}]},
     "a reasoning item has a summary alone"),
    ({"input": []}, "input is empty"),
    ({"tools": [{"type": "web_search"}]}, "a tool is of type web_search, which the policy does not know"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice is of type allowed_tools"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort is set, and it is the run's"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format is set, and answers are not constrained"),
    ({"text": {"verbosity": "low"}}, "text.verbosity is set, and it is the run's"),
    ({"include": ["message.output_text.logprobs"]}, "include has message.output_text.logprobs"),
    ({"truncation": "auto"}, "truncation is set, and a prompt is read whole"),
    ({"background": True}, "background is set, and an answer is waited for"),
    ({"conversation": "conv_x"}, "conversation is set, and no conversation is kept here"),
    ({"top_logprobs": 2}, "top_logprobs is set, and only sampled tokens"),
    ({"extra_body": {"an_invention": 1}}, "an_invention is set, and this endpoint does not have it"),
    ({"max_output_tokens": 0}, "max_output_tokens: Input should be greater")])
async def test_a_field_of_the_responses_api_that_would_do_nothing_is_refused(episode, named, reason):
    clients = episode("so")
    with pytest.raises(openai.BadRequestError, match=reason) as refused:
        await clients.openai.responses.create(**{"model": "policy", "input": "x"} | named)
    assert refused.value.code == "invalid_request_error"
    assert clients.llm.steps == []


async def test_a_field_with_a_value_that_changes_nothing_is_served(episode):
    clients = episode("so", "so")
    await clients.anthropic.messages.create(
        model="any", max_tokens=9, messages=[{"role": "user", "content": "x"}], metadata={"user_id": "me"},
        thinking={"type": "disabled"}, service_tier="auto", tools=[{**TOOL, "type": "custom"}], cache_control={
            "type": "ephemeral"}, extra_body={
                "temperature": 0.2, "top_k": 5, "container": None, "mcp_servers": [], "context_management": {
                    "edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}})
    await clients.openai.responses.create(
        model="any", input="x", truncation="disabled", background=False, temperature=0.2, metadata={"a": "b"},
        reasoning={"summary": "auto", "effort": None}, text={"format": {"type": "text"}}, user="me",
        include=["reasoning.encrypted_content"], tools=[{"type": "function", **FUNCTION, "strict": True}])
    assert len(clients.llm.steps) == 2


async def test_errors_have_the_form_of_the_dialect(episode):
    clients = episode(prompt_tokens=60)
    long = [{"role": "user", "content": "x" * 100}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: the prompt has") as full:
        await clients.anthropic.messages.create(model="policy", max_tokens=9, messages=long)
    assert full.value.body == {"type": "error", "error": {
        "type": "invalid_request_error", "message": full.value.body["error"]["message"]}}
    with pytest.raises(openai.BadRequestError) as full:
        await clients.openai.responses.create(model="policy", input=long)
    assert full.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.AuthenticationError, match="no episode has this key"):
        await clients.anthropic.with_options(api_key="wrong").messages.create(
            model="policy", max_tokens=9, messages=long)
    with pytest.raises(anthropic.NotFoundError, match=(
            r"there is no POST /v1/messages/batches here, but GET /v1/models, .*POST /v1/messages, .*POST /env/reset")):
        await clients.anthropic.messages.batches.create(requests=[])


@pytest.mark.parametrize("head", [{"x-api-key": "key"}, {"authorization": "Bearer key"}, {
    "x-api-key": "key", "authorization": "Bearer of another provider"}])
async def test_the_key_is_read_as_older_and_newer_clients_send_it(episode, head):
    clients = episode("so")
    body = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    reply = await clients.http.post("/v1/messages", json=body, headers=head)
    assert (reply.status_code, reply.json()["content"]) == (200, [{"type": "text", "text": "so"}])


async def test_the_policy_is_listed_for_both_clients(episode):
    clients = episode()
    assert [model.id async for model in clients.openai.models.list()] == ["policy"]
    assert [model.id async for model in clients.anthropic.models.list()] == ["policy"]
    assert (await clients.anthropic.models.retrieve("policy")).display_name == "policy"


async def test_a_stream_has_the_events_of_its_dialect_in_their_order(episode):
    clients = episode(ANSWERS[0], ANSWERS[0])
    events = [event.type async for event in await clients.anthropic.messages.create(
        model="policy", max_tokens=99, stream=True, tools=[TOOL], thinking={"type": "adaptive"},
        messages=[{"role": "user", "content": QUESTION}])]
    start, delta, stop = (f"content_block_{part}" for part in ("start", "delta", "stop"))
    assert events == ["message_start", start, delta, delta, stop, start, delta, stop, start, delta, stop,
                      "message_delta", "message_stop"]
    stream = [event async for event in await clients.openai.responses.create(
        model="policy", input=QUESTION, stream=True, tools=[{"type": "function", **FUNCTION}])]
    assert [event.sequence_number for event in stream] == list(range(len(stream)))
    item = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    assert [event.type.removeprefix("response.") for event in stream] == [
        "created", "in_progress", *(name.format("reasoning_text") for name in item),
        *(name.format("output_text") for name in item), "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed"]


@pytest.mark.attack
@pytest.mark.parametrize(("model", "body"), [
    (ChatRequest, {"messages": [None] * 1000}),
    (ChatRequest, {"messages": [{"role": "user", "content": [None] * 1000}]}),
    (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [None] * 1000}]}),
    (ChatRequest, {"messages": [{"role": "user"}], "stop_token_ids": [None] * 1000}),
    (ChatRequest, {"messages": [{"role": "user"}], "stop": [None] * 1000}),
    (MessagesRequest, {"max_tokens": 1, "messages": [None] * 1000}),
    (MessagesRequest, {"max_tokens": 1, "messages": [{"role": "user", "content": [None] * 1000}]}),
    (MessagesRequest, {"max_tokens": 1, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "x", "content": [None] * 1000}]}]}),
    (ResponsesRequest, {"input": [None] * 1000}),
    (ResponsesRequest, {"input": [{"type": "message", "role": "user", "content": [None] * 1000}]})])
def test_a_list_is_refused_at_its_first_wrong_element(model: type[BaseModel], body: dict):
    """The event loop validates requests. A body of 4 MiB has room for 800,000 wrong elements."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() <= 3, "each field that may be a text has an error for that, too"
