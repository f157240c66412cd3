"""Tokenizers of published models: text comes back as it was, and a conversation goes on from the very tokens."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from third_party import TOKENIZERS, renderer_of

from envservice.base import Outcome
from envservice.text.tool_calls import ToolCall, parse_calls, read_call, tool, written_call
from learner.cold_start.sft_data import Example, encode
from rollout.agents.completions import ChatRequest, reply, templated
from rollout.agents.session import ChatAnswer
from rollout.engine.engine import Sample
from rollout.prompt_renderer import load_text
from services.chat import ChatFormat
from services.config.tree import EnvSection
from services.tokenizer import token_bytes

pytestmark = pytest.mark.skipif(not TOKENIZERS, reason="scripts/setup --test has not fetched them by npm")
MODELS = ("deepseek_v3", "mistral_nemo", "qwen2_5", "qwen3")
WITH_TOOLS = ("mistral_nemo", "qwen2_5", "qwen3")
TEXTS = ("go to oven 1", "<think>It is in the  fridge.\n\nSo:</think><action>take apple 12 from fridge 1</action>",
         "naïve café, 3.50 €, 火", "\tx = {'a': [1, 2]}\n", "don't; it's 100% 🔥")
TOOLS = [tool("add", "Adds a number.", {"n": {"type": "integer"}, "word": {"type": "string"}})]
FIRST = Outcome(observation="You are in a room. Your task is to: look.", admissible_actions=["look"])
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "x"}]


def ids(name: str, text: str) -> list[int]:
    return renderer_of(name).tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", TEXTS)
def test_an_answer_reads_as_it_was_written(name: str, text: str):
    """transformers builds DeepSeek's by LLaMA's rules, which drop every space: no action would be admissible."""
    assert renderer_of(name).decode(ids(name, text)) == text


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", [*TEXTS, "Привет, мир", "👩‍🚀 去厨房拿苹果"])
def test_the_bytes_of_the_tokens_are_those_of_the_text(name: str, text: str):
    """Tokens of parts of a character had the bytes of the replacement character."""
    tokenizer = renderer_of(name).tokenizer
    assert b"".join(token_bytes(tokenizer, i) for i in ids(name, text)).decode() == text
    end = tokenizer.eos_token_id
    assert token_bytes(tokenizer, end) == tokenizer.eos_token.encode()


@pytest.mark.parametrize("name", MODELS)
def test_an_action_is_parsed_from_tokens(name: str):
    end = renderer_of(name).tokenizer.eos_token_id
    assert end in renderer_of(name).stop_ids
    answer = [*ids(name, "<think>I look.</think><action>go to oven 1</action>"), end]
    assert renderer_of(name).parse(np.array(answer)).action == "go to oven 1"


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_continues_the_tokens_of_the_answer(name: str):
    """So its calls train as one sequence, and nothing is read in other tokens than it was sampled in."""
    chat = renderer_of(name).chat
    assert isinstance(chat, ChatFormat)
    end = renderer_of(name).tokenizer.eos_token_id
    for answer in ("I open drawer 12, then the café.", "go to oven 1"):
        sampled = [*ids(name, chat.text(ASKED)), *ids(name, answer), end]
        said = {"role": "assistant", "content": renderer_of(name).decode([*ids(name, answer), end])}
        again = ids(name, chat.text([*ASKED, said, {"role": "user", "content": "y"}]))
        assert again[: len(sampled)] == sampled


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen2_5", "qwen3"])
def test_answers_end_where_the_template_ends_them(name: str, tmp_path):
    """A base model with the tokenizer's template but another end, as Qwen2.5's are; others need no further end."""
    whole = renderer_of(name)
    for file in TOKENIZERS[name].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    described = json.loads((tmp_path / "tokenizer_config.json").read_text())
    other = next(token.content for i, token in sorted(whole.tokenizer.added_tokens_decoder.items())
                 if token.special and i not in whole.stop_ids)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(described | {"eos_token": other}))
    base = load_text(str(tmp_path), EnvSection(name="alfworld"))
    assert set(base.stop_ids) == {*whole.stop_ids, base.tokenizer.eos_token_id}
    assert whole.stop_ids == (whole.tokenizer.eos_token_id,)


def test_mistrals_own_file_of_a_tokenizer_changes_nothing(tmp_path):
    """transformers chose it, as vLLM's package for it is installed, and that tokenizer has no chat template."""
    for file in TOKENIZERS["mistral_nemo"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tekken.json").write_bytes((files("mistral_common") / "data" / "tekken_240718.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", "vocab_size": 131072}))
    both, plain = load_text(str(tmp_path), EnvSection(name="alfworld")), renderer_of("mistral_nemo")
    assert both.prompt(FIRST, [], FIRST) == plain.prompt(FIRST, [], FIRST)
    assert both.stop_ids == plain.stop_ids
    for text in TEXTS:
        assert both.decode(ids("mistral_nemo", text)) == text


def test_raw_text_begins_as_the_tokenizer_begins_it():
    """In the cold start as in the run. Chat templates write <s> themselves."""
    text = load_text(str(TOKENIZERS["mistral_nemo"]), EnvSection(name="alfworld", prompt="compact"))
    begin = text.tokenizer.bos_token_id
    ids_of_run = text.prompt(FIRST, [], FIRST)
    assert ids_of_run == text.tokenizer.encode(text.template.render(FIRST, [], FIRST))
    [row] = encode(text.tokenizer, [Example(prompt=text.template.render(FIRST, [], FIRST), response="look")],
                   chat=None, max_tokens=999)
    assert row.ids[:row.prompt_tokens].tolist() == ids_of_run
    assert ids_of_run[0] == begin
    assert ids("mistral_nemo", renderer_of("mistral_nemo").chat.prompt("x")).count(begin) == 1
    other = load_text(str(TOKENIZERS["qwen2_5"]), EnvSection(name="alfworld", prompt="compact"))
    assert other.tokenizer.decode(other.prompt(FIRST, [], FIRST)) == other.template.render(FIRST, [], FIRST)


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}])
def test_qwen3_forgets_its_thoughts_so_a_conversation_starts_a_row_with_each_call(arguments: dict[str, bool]):
    """docs/reference/agents-api.md says so, and how to keep them."""
    chat = ChatFormat(tokenizer=renderer_of("qwen3").tokenizer, arguments=arguments)
    answer = chat.opening() + ("go" if arguments else "<think>\nhm\n</think>\n\ngo")
    again = chat.text([*ASKED, {"role": "assistant", "content": answer}, {"role": "user", "content": "y"}])
    assert again.startswith(chat.text(ASKED).partition("<think>")[0] + "go")


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_call_comes_back_from_an_openai_client_as_the_tokens_that_were_sampled(name: str):
    """Two turns: the template's own call is parsed, told to the client, and sent back with the tool's result."""
    chat = renderer_of(name).chat
    assert isinstance(chat, ChatFormat)
    arguments = {"n": 5, "word": "12"}
    call = {"id": "0a1b2c3d4", "type": "function", "function": {"name": "add", "arguments": arguments}}
    prompt = chat.text(ASKED, TOOLS)
    thought = "<think>\nI add.\n</think>\n\n" if name == "qwen3" else ""
    whole = chat.text([*ASKED, {"role": "assistant", "content": thought, "tool_calls": [call]}], TOOLS, answering=False)
    assert whole.startswith(prompt)
    end = renderer_of(name).tokenizer.eos_token
    sampled = ids(name, whole[len(prompt):].partition(end)[0])
    text = renderer_of(name).decode(sampled)
    answer = ChatAnswer(text=text, parsed=parse_calls(text, TOOLS), prompt_tokens=3, sample=Sample(
        ids=np.array(sampled, dtype=np.int32), logprobs=np.zeros(len(sampled), dtype=np.float32), spans=[],
        finished="stop"))
    assert [read_call(written_call(found)) for found in answer.parsed.calls] == [ToolCall("add", arguments)]
    told = reply(answer, ChatRequest(messages=ASKED), lambda _: b"")["choices"][0]["message"]
    assert json.loads(told["tool_calls"][0]["function"]["arguments"]) == arguments
    result = {"role": "tool", "tool_call_id": told["tool_calls"][0]["id"], "name": "add", "content": "17"}
    again = ids(name, chat.text(templated([*ASKED, told, result]), TOOLS))
    sampled = [*ids(name, prompt), *sampled]
    assert again[: len(sampled)] == sampled
