"""Chat templates of published models: what the model reads, the thought it opens, and its calls of tools."""

from __future__ import annotations

import pytest
from byte_tokenizer import byte_tokenizer
from third_party import TEMPLATES

from envservice.text.tool_calls import ToolCall, parse_calls, tool
from learner.cold_start.sft_data import Example, encode
from rollout.agents.completions import templated
from services.answer_end import answer_end
from services.chat import THINK, ChatFormat, ChatRefused
from services.errors import UserError

pytestmark = pytest.mark.skipif(TEMPLATES is None, reason="TRL is not installed (scripts/setup --test)")
TOOLS = [tool("add", "Adds a number.", {"n": {"type": "integer"}, "word": {"type": "string"}})]
CALL = ToolCall("add", {"n": 5, "word": "12"})
OPENS = {"qwen3_5_think": "<think>\n", "qwen3_5_nothink": "<think>\n\n</think>\n\n", "deepseek_r1_distill": "<think>\n",
         "nemotron_3_nano": "<think>\n"}
"""Maps templates to the thought that they open; all others open nothing."""
WITH_TOOLS = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "nemotron_3_nano",
              "llama3_1", "llama3_2")
"""Templates with tools whose calls we read."""
PLAIN = ("llama3", "gemma", "gemma3", "phi3", "phi3_5", "cohere", "cohere2", "deepseek_r1_distill", "gptoss", "lfm2")


def chat(name: str, **settings) -> ChatFormat:
    assert TEMPLATES is not None
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<|begin|>"
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatFormat(tokenizer=tokenizer, **settings)


@pytest.mark.parametrize("name", [*WITH_TOOLS, *PLAIN])
def test_a_question_is_read_once_and_the_opened_thought_belongs_to_the_answer(name: str):
    """If a template opens `<think>` and nobody noticed, every answer would lack its tag, and be invalid."""
    asked = chat(name)
    prompt = asked.prompt("Go to the oven.")
    assert prompt.count("Go to the oven.") == 1
    opening = asked.opening()
    assert opening == OPENS.get(name, "")
    assert prompt.endswith(opening)
    assert opening or THINK not in prompt.partition("Go to the oven.")[2]


@pytest.mark.parametrize("name", [*WITH_TOOLS, *PLAIN])
def test_a_system_prompt_is_read_or_refused(name: str):
    told = chat(name, system="You play a game.")
    if name == "gemma":
        with pytest.raises(ChatRefused, match="System role not supported"):
            told.prompt("x")
    else:
        assert told.prompt("x").count("You play a game.") == 1


@pytest.mark.parametrize("name", [name for name in (*WITH_TOOLS, *PLAIN) if name != "gemma"])
def test_a_system_prompt_that_names_the_tags_opens_no_thought(name: str):
    """Its text came before every answer, and no action was found."""
    told = chat(name, system="Think in <think></think>. Act in <action></action>.")
    assert told.opening() == OPENS.get(name, "")


def test_qwen3_thinks_unless_it_is_told_not_to():
    assert chat("qwen3", arguments={"enable_thinking": False}).opening() == "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", ["gemma3", "phi3"])
def test_a_template_that_would_leave_tools_out_is_refused(name: str):
    with pytest.raises(ChatRefused, match="it leaves out the tools add: describe them in your prompt"):
        chat(name).text([{"role": "user", "content": "x"}], TOOLS)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_call_that_the_template_writes_is_parsed_back(name: str):
    """The template shows the tools, and its own form of a call is read as the call that it was."""
    asked = [{"role": "user", "content": "x"}]
    called = {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "id": "call00001", "function": {"name": CALL.name, "arguments": CALL.arguments}}]}
    form = chat(name)
    assert "Adds a number." in form.text(asked, TOOLS)
    _, begins, answer = form.text([*asked, called], TOOLS, answering=False).rpartition("assistant")
    answer = answer.removeprefix("<|end_header_id|>").partition("<|im_end|>")[0].partition("<|eot_id|>")[0]
    assert begins
    assert parse_calls(answer, TOOLS).calls == [CALL]


def asking(*roles: str):
    return [{"role": role, "content": f"{role} {place}"} for place, role in enumerate(roles)]


@pytest.mark.parametrize(("name", "roles", "lost"), [
    ("phi3", ("user", "assistant", "tool"), "message 3, of the role tool"),
    ("phi3_5", ("user", "assistant", "tool"), "message 3, of the role tool"),
    ("cohere2", ("user", "assistant", "tool"), "message 3, of the role tool"),
    ("deepseek_r1_distill", ("system", "system", "user"), "message 1, of the role system"),
    ("gptoss", ("user", "assistant", "system", "user"), "message 3, of the role system"),
    ("qwen2_5", ("function", "user"), "message 1, of the role function")])
def test_a_message_that_the_template_would_leave_out_is_refused(name: str, roles: tuple[str, ...], lost: str):
    """Else the model would act without the result of its tool, or without its instructions."""
    with pytest.raises(ChatRefused, match=f"it leaves out {lost}: say it in a user's message"):
        chat(name).text(asking(*roles))


CALLED = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"n": 5}}}]}


@pytest.mark.parametrize("name", ["phi3", "gemma3", "lfm2", "deepseek_r1_distill"])
def test_a_template_that_would_leave_out_what_the_assistant_called_is_refused(name: str):
    """An agent that describes its tools in its own prompt may still keep their calls in the history."""
    with pytest.raises(ChatRefused, match="it leaves out the calls of tools in message 2: write them in its content"):
        chat(name).text([*asking("user"), CALLED, *asking("user")])


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_template_that_shows_calls_of_tools_is_not_refused(name: str):
    assert "add" in chat(name).text([*asking("user"), CALLED, {"role": "tool", "content": "5", "name": "add"}])


@pytest.mark.parametrize("tool", [{"name": "add"}, {"type": "function", "function": {}}, {"function": {"name": 7}}])
@pytest.mark.parametrize("name", ["qwen2_5", "phi3"])
def test_a_tool_without_a_name_is_refused(name: str, tool: dict):
    """As clients of the Responses API and of Anthropic write it. Phi's template dropped it without a word."""
    with pytest.raises(ChatRefused, match=r"tool 1 has no function.name: write \{'type': 'function'"):
        chat(name).text(asking("user"), [tool])


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "nemotron_3_nano", "deepseek_r1_distill"])
def test_a_message_that_the_template_shows_is_not_refused(name: str):
    """Also one that it writes as JSON, or without the spaces around it."""
    told = [*asking("system", "user", "assistant"), {"role": "tool", "content": ' {"n": "5"}\n', "name": "add"}]
    assert "5" in chat(name).text(told)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "deepseek_r1_distill", "phi3", "gemma3"])
def test_instructions_of_a_developer_are_those_of_the_system(name: str):
    """OpenAI's clients call them so since its reasoning models; half of the templates drop a role with this name."""
    written = chat(name).text(templated(asking("developer", "user")))
    assert written == chat(name).text([{"role": "system", "content": "developer 0"}, *asking("", "user")[1:]])


@pytest.mark.parametrize("calls", [None, []])
@pytest.mark.parametrize("name", [*WITH_TOOLS, *PLAIN, "deepseekv3"])
def test_fields_without_a_value_are_as_if_they_were_not_there(name: str, calls: list | None):
    """OpenAI's client sends its own answer back with each of them. Llama 3.1's template asked how long null is, and
    DeepSeek V3's left the text out."""
    told = asking("user", "assistant", "user")
    sent = [told[0], told[1] | {"tool_calls": calls, "refusal": None, "audio": None, "function_call": None}, told[2]]
    assert chat(name).text(templated(sent)) == chat(name).text(templated(told))


ENDS = {"qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "gemma": "<end_of_turn>", "gemma3": "<end_of_turn>",
        "phi3": "<|end|>", "phi3_5": "<|end|>", "llama3": "<|eot_id|>", "llama3_1": "<|eot_id|>",
        "cohere": "<|END_OF_TURN_TOKEN|>", "lfm2": "<|im_end|>", "gptoss": "<|return|>"}
"""Maps templates to the token that ends an answer in them. The tokenizer's own end is another one."""


def ending(name: str, *marks: str, eos: str = "<|endoftext|>") -> tuple[ChatFormat, dict[str, int]]:
    """A template with a tokenizer whose marks are special tokens, and the numbers of these."""
    form = chat(name)
    form.tokenizer.add_special_tokens({"eos_token": eos, "additional_special_tokens": list(marks)})
    return form, {mark: form.tokenizer.convert_tokens_to_ids(mark) for mark in (*marks, eos)}


@pytest.mark.parametrize(("name", "end"), ENDS.items())
def test_the_end_that_the_template_writes_is_taught_and_sampled(name: str, end: str):
    """The tokenizer's end of text was taught: the template's end became unlikely, and later turns joined no row."""
    form, ids = ending(name, end, "<|user|>", "<|system|>", "<|start|>")
    found = answer_end(form.tokenizer, form)
    assert found.taught == (ids[end],)
    assert set(found.stop_ids) == {ids[end], ids["<|endoftext|>"]}
    (row,) = encode(form.tokenizer, [Example(prompt="Go.", response="look")], chat=form, max_tokens=10_000)
    assert row.ids[-1] == ids[end]


@pytest.mark.parametrize("name", sorted(set(ENDS) - {"gptoss"}))
def test_a_conversation_continues_a_taught_answer(name: str):
    """So its turns train as one row. GPT-OSS writes another end into the history, and each of its calls has a row."""
    form, _ = ending(name, ENDS[name])
    (row,) = encode(form.tokenizer, [Example(prompt="Go.", response="look")], chat=form, max_tokens=10_000)
    told = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "look"}]
    again = form.tokenizer.encode(form.text([*told, {"role": "user", "content": "y"}]), add_special_tokens=False)
    assert again[: len(row.ids)] == row.ids.tolist()


def test_an_end_of_several_tokens_is_taught_to_its_last():
    form, ids = ending("cohere2", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>")
    found = answer_end(form.tokenizer, form)
    assert found.taught[-1] == ids["<|END_OF_TURN_TOKEN|>"]
    assert ids["<|END_RESPONSE|>"] not in found.stop_ids


def test_the_next_turn_ends_an_answer_if_the_model_names_it_as_an_end():
    """As GLM does, whose template writes nothing behind the last answer."""
    form, ids = ending("qwen2_5", "<|user|>")
    form.tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}")
    assert answer_end(form.tokenizer, form, ends=[ids["<|user|>"]]).taught == (ids["<|user|>"],)
    assert answer_end(form.tokenizer, form).taught == (ids["<|endoftext|>"],)


def test_a_tokenizer_without_any_end_is_refused():
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(UserError, match=r"no end-of-text token.*name its eos_token"):
        answer_end(tokenizer, None)
