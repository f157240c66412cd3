"""The endpoint as OpenAI's clients and the frameworks on top of them use it."""

from __future__ import annotations

import asyncio
import contextlib
import os

import httpx
import openai
import pytest
from byte_tokenizer import byte_tokenizer
from scripted_engine import ScriptedEngine
from starlette.requests import Request

from envservice.text.plain_prompts import PLAIN
from envservice.text.tool_calls import tool
from rollout.agents.app import create_app
from rollout.agents.completions import ChatRequest
from rollout.agents.refusals import Refused
from rollout.agents.session import AgentSession
from rollout.agents.worker_endpoint import HOST, endpoint
from rollout.prompt_renderer import PromptRenderer

CALL = '<tool_call>{"name": "add", "arguments": {"n": 2}}</tool_call>'
TOOLS = [tool("add", "Adds.", {"n": {"type": "integer"}})]
USER = {"role": "user", "content": "7 plus 2"}


@pytest.fixture
def asked(text, ticket):
    """`asked(*answers)` returns a client of an endpoint that gives these answers, and its session."""
    def made(*answers, prompt_tokens=1000, renderer=text):
        llm = AgentSession(ticket=ticket, engine=ScriptedEngine(renderer, answers), text=renderer, max_calls=5,
                           prompt_tokens=prompt_tokens, response_tokens=64)
        transport = httpx.ASGITransport(create_app({"key": (llm, None)}))
        client = openai.AsyncOpenAI(base_url="http://episode/v1", api_key="key", max_retries=0,
                                    http_client=httpx.AsyncClient(transport=transport))
        return client, llm

    return made


async def ask(client, *messages, **named):
    reply = await client.chat.completions.create(model="policy", messages=list(messages) or [USER], **named)
    return reply.choices[0].message


async def test_an_answer_ends_at_the_texts_that_the_client_names(asked, text):
    """smolagents sends some with every call. The row ends there too: nothing is trained that the agent did not get."""
    client, llm = asked("Thought: so\nObservation: 9\nThought: done")
    reply = await client.chat.completions.create(model="policy", messages=[USER], stop=["Observation:", "Calling:"])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Thought: so\n", "stop")
    [step] = llm.steps
    assert text.decode(step.response_ids.tolist()) == "Thought: so\nObservation:"
    assert len(step.logprobs) == len(step.response_ids) == step.spans[-1].end == reply.usage.completion_tokens
    assert step.valid


async def test_without_tools_an_answer_is_text(asked):
    """An agent that tells the model of its tools in its own words reads the calls itself."""
    client, llm = asked(CALL, "<tool_call>add 2", CALL, CALL)
    for wanted in (CALL, "<tool_call>add 2"):
        message = await ask(client)
        assert (message.content, message.tool_calls) == (wanted, None)
    assert (await ask(client, tools=TOOLS, tool_choice="none")).content == CALL
    message = await ask(client, tools=TOOLS)
    assert message.tool_calls[0].function.arguments == '{"n":2}'
    assert all(step.valid for step in llm.steps)


async def test_an_agent_that_takes_one_call_at_a_time_gets_the_first(asked):
    """As vLLM answers: langgraph's agents without parallel calls would refuse a second one."""
    client, llm = asked(CALL + CALL.replace("2", "3"), CALL + CALL)
    message = await ask(client, tools=TOOLS, parallel_tool_calls=False)
    assert [call.function.arguments for call in message.tool_calls] == ['{"n":2}']
    assert len((await ask(client, tools=TOOLS)).tool_calls) == 2
    assert all(step.valid for step in llm.steps)


async def test_instructions_of_a_developer_are_read(asked, text):
    client, llm = asked("so")
    await ask(client, {"role": "developer", "content": "Be brief."}, USER)
    assert "[system]Be brief." in text.tokenizer.decode(llm.steps[0].prompt_ids.tolist())


IMAGE = {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.mark.parametrize(("messages", "named", "refusal"), [
    ([IMAGE], {}, "a message has a part of type image_url, and the policy reads text alone"),
    ([USER], {"logprobs": True, "top_logprobs": 3}, "only sampled tokens have logprobs"),
    ([USER], {"functions": [TOOLS[0]["function"]]}, "functions is set, and they are the older form of tools"),
    ([USER], {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, "set model.chat_template_kwargs"),
    ([USER], {"extra_body": {"structured_outputs": {"choice": ["a"]}}}, "structured_outputs is set, and answers are"),
    ([USER], {"extra_body": {"guided_choice": ["a"]}}, "guided_choice is set, and answers are not constrained"),
    ([USER], {"extra_body": {"continue_final_message": True, "add_generation_prompt": False}},
     "continue_final_message is set, and each answer is a whole message"),
    ([USER], {"extra_body": {"add_generation_prompt": False}},
     "add_generation_prompt is false, and each answer is a whole message"),
    *[([USER], {"extra_body": {name: value}}, f"{name} is set, and {reason}") for name, value, reason in (
        ("echo", True, "each answer is a whole message"), ("min_tokens", 4, "an answer ends where the policy ends it"),
        ("ignore_eos", True, "an answer ends where"), ("truncate_prompt_tokens", 9, "a prompt is read whole"),
        ("return_token_ids", True, "the run's archive"), ("prompt_logprobs", 0, "the run's archive"),
        ("skip_special_tokens", False, "special tokens"), ("bad_words", ["a"], "answers are not constrained"),
        ("an_invention", 1, "this endpoint does not have it: leave it out"))],
    ([USER], {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": []}}}, "tool_choice is of type allowed_tools, .*: send only those"),
    ([USER], {"logit_bias": {"5": 9}}, "logit_bias is set, and answers are not constrained"),
    ([USER], {"reasoning_effort": "low"}, "reasoning_effort is set, and it is the run's: set model.chat_template_kw"),
    *[([USER, {"role": "assistant", "content": "so", name: value}], {}, f"{name} is set in a message, and {reason}")
      for name, value, reason in (("prefix", True, "each answer is a whole message"),
                                  ("partial", True, "each answer is a whole message"),
                                  ("function_call", {"name": "add", "arguments": "{}"}, "it is the older form"))],
    ([USER], {"extra_body": {"chat_template": "x"}}, "chat_template is set, and it is the run's: set model.chat_temp"),
    ([USER], {"extra_body": {"documents": [{"text": "x"}]}}, "documents is set, .*: write them in a message")])
async def test_a_field_that_would_do_nothing_is_refused(asked, messages, named, refusal):
    client, llm = asked("so")
    with pytest.raises(openai.BadRequestError, match=refusal):
        await ask(client, *messages, **named)
    assert llm.steps == []


async def test_a_field_with_the_value_that_it_has_anyway_is_not_refused(asked):
    """Clients that write out all fields of vLLM send these."""
    client, _ = asked("so")
    named = {"structured_outputs": None, "guided_json": None, "guided_decoding_backend": None, "documents": None,
             "chat_template": None, "continue_final_message": False, "add_generation_prompt": True, "echo": False,
             "min_tokens": 0, "ignore_eos": False, "prompt_logprobs": None, "skip_special_tokens": True, "best_of": 1,
             "an_invention": None}
    harmless = {"temperature": 0.2, "top_p": 0.9, "seed": 7, "user": "me", "store": False, "metadata": {"a": "b"}}
    user = USER | {"prefix": False, "function_call": None}
    assert (await ask(client, user, **harmless, extra_body=named | {"top_k": 5, "priority": 1})).content == "so"


@pytest.mark.parametrize(("keep", "content"), [(False, "abc"), (True, "abcX")])
@pytest.mark.parametrize("how", ["stop", "stop_token_ids"])
async def test_the_end_that_a_client_names_is_in_the_answer_if_it_asks_for_it(asked, text, how, keep, content):
    """As vLLM serves it, for a text and for a token. The step ends behind the token in both."""
    client, llm = asked("abcXdef")
    [token] = text.tokenizer.encode("X", add_special_tokens=False)
    named = {"stop": "X", "stop_token_ids": [token]}
    message = await ask(client, extra_body={how: named[how], "include_stop_str_in_output": keep})
    assert message.content == content
    [step] = llm.steps
    assert text.decode(step.response_ids.tolist()) == "abcX"


async def test_each_token_has_its_own_bytes(asked):
    """A token of a part of a character had those of the replacement character."""
    written = "\U0001f525 火 жар"
    client, _ = asked(written)
    reply = await client.chat.completions.create(model="policy", messages=[USER], logprobs=True)
    tokens = reply.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens[:-1]).decode() == written
    assert (tokens[0].token, tokens[0].bytes) == ("\ufffd", [0xF0])
    assert tokens[-1].token == "<|end|>"


async def test_the_listed_model_is_retrieved(asked):
    client, _ = asked()
    [listed] = (await client.models.list()).data
    assert await client.models.retrieve(listed.id) == listed
    with pytest.raises(openai.NotFoundError, match="there is no model 'owner/other' here: the policy is 'policy'"):
        await client.models.retrieve("owner/other")


async def test_a_prompt_that_is_too_long_may_be_shortened(asked):
    """The error has the code by which frameworks know that they have to summarise."""
    client, llm = asked("a", "b", prompt_tokens=60)
    long = {"role": "user", "content": "x" * 100}
    for _ in range(2):
        await ask(client)
        with pytest.raises(openai.BadRequestError, match="the model's maximum context length is 60 tokens") as full:
            await ask(client, USER, long)
        assert (full.value.code, llm.over.end) == ("context_length_exceeded", "context")
    assert len(llm.steps) == 2


async def test_a_token_that_the_model_does_not_know_is_refused(asked):
    """The sampler would end at it, and so would each worker that played the ticket after."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<whisper>", "<shout>"])
    number = tokenizer.convert_tokens_to_ids("<shout>")
    small = PromptRenderer(template=PLAIN["full"](2), tokenizer=tokenizer, vocabulary=number)
    client, llm = asked("so", renderer=small)
    with pytest.raises(openai.BadRequestError, match=rf"the prompt holds <shout>, .* beyond the {number} that"):
        await ask(client, {"role": "user", "content": "a <shout> b"})
    assert (await ask(client)).content == "so"
    assert len(llm.steps) == 1


async def test_another_interface_names_those_that_are_served(asked):
    client, _ = asked()
    with pytest.raises(openai.NotFoundError, match=r"POST /v1/chat/completions, POST /v1/responses, POST /v1/messages"):
        await client.post("/completions", body={}, cast_to=object)


async def test_a_thought_that_the_template_opens_is_in_the_answer_whatever_the_games_prompt(asked):
    """With env.prompt=compact the environment's own prompt is no chat, but an agent's is."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    client, _ = asked("so</think>nine", renderer=PromptRenderer(template=PLAIN["compact"](2), tokenizer=tokenizer))
    assert (await ask(client)).content == "<think>\nso</think>nine"


async def test_clients_ask_this_machine_without_a_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "cluster.local")
    monkeypatch.setenv("NO_PROXY", "cluster.local")
    async with endpoint() as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        assert [model.id async for model in client.models.list()] == ["policy"]
    assert os.environ["no_proxy"] == f"cluster.local,{HOST}"


async def test_a_call_whose_client_has_left_is_given_up_and_its_repetition_counts(text, ticket):
    """Clients repeat calls that take too long for them. Each took a slot of the sampler, and one of the episode's
    calls: a slow sampler ended episodes."""
    given_up = asyncio.Event()

    class Slow(ScriptedEngine):
        async def sample(self, prompt_ids, **named):
            if not given_up.is_set():
                try:
                    await asyncio.sleep(600)
                finally:
                    given_up.set()
            return await super().sample(prompt_ids, **named)

    llm = AgentSession(ticket=ticket, engine=Slow(text, ["9"]), text=text, max_calls=1, prompt_tokens=1000,
                       response_tokens=64)
    async with endpoint() as served:
        served.episodes["key"] = llm, None
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="key", max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            await ask(client, timeout=0.5)
        async with asyncio.timeout(30):
            await given_up.wait()
        assert (await ask(client)).content == "9"
    assert len(llm.steps) == 1


async def test_an_answer_that_comes_while_the_client_leaves_is_taken_back(text, ticket):
    """Nobody got it, and yet it stayed as a step that chose nothing."""
    answers = asyncio.Event()

    class Slow(ScriptedEngine):
        async def sample(self, prompt_ids, **named):
            await answers.wait()
            return await super().sample(prompt_ids, **named)

    class Leaving(Request):
        async def is_disconnected(self):
            answers.set()
            await asyncio.sleep(0.1)  # the answer comes while the endpoint looks
            return True

    llm = AgentSession(ticket=ticket, engine=Slow(text, ["9"]), text=text, max_calls=1, prompt_tokens=1000,
                       response_tokens=64)
    app = create_app({"key": (llm, None)})
    route = next(route for route in app.routes if route.path == "/v1/chat/completions")
    head = [(b"authorization", b"Bearer key")]
    with contextlib.suppress(Refused):
        await route.endpoint(ChatRequest(messages=[USER]), Leaving({"type": "http", "headers": head}))
    assert llm.steps == []
