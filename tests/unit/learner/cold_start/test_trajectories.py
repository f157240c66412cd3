"""Trajectories from a file: both forms, what of them is trained on, and the line that an error names."""

import codecs
import json
from pathlib import Path

import pytest
from third_party import TOKENIZERS

from envservice.text.tool_calls import TAGS, tool
from learner.cold_start.scratch_model import END, train_tokenizer
from learner.cold_start.sft_data import Example, encode
from learner.cold_start.trajectories import read_trajectories
from services.chat import ChatFormat
from services.errors import UserError
from services.tokenizer import load_tokenizer

ASKED, SAID = {"role": "user", "content": "go"}, {"role": "assistant", "content": "<action>on</action>"}
GOOD = json.dumps({"messages": [ASKED, SAID]})


def written(folder: Path, *lines: str | dict) -> Path:
    file = folder / "shown.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return file


def test_each_answer_of_a_conversation_is_an_example(tmp_path: Path):
    """The second has weight 0: the third reads it, and nothing is trained on it."""
    system = {"role": "system", "content": "s"}
    bad = {**SAID, "content": "bad"}
    file = written(tmp_path, {"id": 7, "messages": [system, ASKED, SAID, ASKED, {**bad, "weight": 0}, ASKED, SAID]}, "")
    found = read_trajectories(file, chat=True)
    assert found.examples == [
        Example(prompt=(system, ASKED), response=SAID["content"]),
        Example(prompt=(system, ASKED, SAID, ASKED, bad, ASKED), response=SAID["content"], learn_prompt=False)]
    assert found.episodes == 1


@pytest.mark.parametrize("chat", [True, False])
def test_steps_have_prompts_of_their_own(tmp_path: Path, chat: bool):
    file = written(tmp_path, {"steps": [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d"}]},
                   {"steps": [{"prompt": "e", "response": "f", "reward": 1}], "won": True})
    found = read_trajectories(file, chat=chat)
    assert found.examples == [Example(prompt=p, response=r) for p, r in ("ab", "cd", "ef")]
    assert found.episodes == 2
    other = written(tmp_path, {"steps": [{"prompt": "a", "response": "b"}]})
    assert read_trajectories(other, chat=chat).digest != found.digest


@pytest.mark.parametrize(("line", "text"), [
    ("{", "is no trajectory"),
    ("[1]", "is no trajectory"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "Invalid enum value 'bot' - at `$.messages[0].role`"),
    ({"messages": [ASKED, {"role": "assistant", "content": None}]}, "message 2 has no content"),
    ({"messages": [{"role": "user"}, SAID]}, "message 1 has no content"),
    ({"messages": [ASKED, {**SAID, "tool_calls": [{"function": {"name": "add"}}]}]}, "message 2 has tool_calls, which"),
    ({"messages": [ASKED, {"role": "assistant", "tool_calls": [{}]}]}, "write the calls into its content"),
    ({"messages": [ASKED, {**SAID, "function_call": {"name": "add"}}]}, "message 2 has function_call, which"),
    ({"messages": [ASKED, {**SAID, "reasoning_content": "a thought"}]}, "message 2 has reasoning_content, which"),
    ({"messages": [ASKED, {**SAID, "reasoning": "a thought"}]}, "write the thought into its content, in its tags"),
    ({"messages": [ASKED]}, "has no message of the assistant"),
    ({"messages": []}, "has no message of the assistant"),
    ({"messages": [SAID, ASKED]}, "begins with the assistant"),
    ({"messages": [ASKED, {**SAID, "content": ""}]}, "message 2 is an empty answer"),
    ({"messages": [ASKED, {**SAID, "weight": 2}]}, "$.messages[1].weight"),
    *[({"messages": [ASKED, {**SAID, name: "a thought"}]}, f"message 2 has {name}, which is not read; write the")
      for name in ("thinking", "thinking_blocks", "reasoning_details", "reasoningContent", "thoughts")],
    ({"messages": [ASKED, {**SAID, "content": [{"type": "thinking", "thinking": "x"}]}]}, "has its content in parts"),
    ({"conversations": [{"from": "human", "value": "x"}]}, "is in ShareGPT's form; rename conversations to messages"),
    ({"messages": [{"from": "human", "value": "x"}]}, "message 1 is in ShareGPT's form; rename from to role"),
    ({"prompt": [ASKED], "completion": [SAID]}, "is in TRL's form of prompt and completion; write both lists as one"),
    ({"prompt": "x", "chosen": "y", "rejected": "z"}, "is in TRL's form of preferences"),
    ({"chosen": [ASKED, SAID], "rejected": []}, "rename chosen to messages"),
    ({"instruction": "x", "output": "y"}, "is in Alpaca's form"),
    ({"text": "x"}, "is a whole text, which does not say what the answers in it are"),
    ({"rows": []}, "has neither messages nor steps"),
    ({"messages": [ASKED, SAID], "steps": []}, "has both messages and steps"),
    ({"messages": [], "steps": []}, "has both messages and steps"),
    ({"steps": [{"prompt": "a", "response": ""}]}, "step 1 has an empty response"),
    ({"steps": []}, "has no steps; leave the line out"),
    ({"steps": [{"prompt": "a"}]}, "missing required field `response`")])
def test_a_wrong_line_is_named(tmp_path: Path, line: str | dict, text: str):
    file = written(tmp_path, GOOD, line)
    with pytest.raises(UserError) as raised:
        read_trajectories(file, chat=True)
    assert f"{file} line 2" in str(raised.value)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_byte_order_mark_before_the_first_line_is_no_part_of_it(tmp_path: Path):
    """Windows writes one, and the line would be no JSON for a reason that no editor shows."""
    file = written(tmp_path, GOOD)
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert len(read_trajectories(file, chat=True).examples) == 1
    file.write_text("{}", encoding="utf-16")
    with pytest.raises(UserError, match=r"is UTF-16; save it as UTF-8"):
        read_trajectories(file, chat=True)


@pytest.mark.parametrize(("line", "text"), [
    (b'{"conversations": [{"from": "human", "value": "caf\xe9"}]}', "is in ShareGPT's form"),
    (b'{"text": 1e999}', "is a whole text"), (b'{"caf\xe9": 1}', "is no trajectory")])
def test_a_line_of_another_form_is_named_even_if_it_is_no_utf8(tmp_path: Path, line: bytes, text: str):
    file = tmp_path / "shown.jsonl"
    file.write_bytes(line)
    with pytest.raises(UserError, match=f"line 1 {text}"):
        read_trajectories(file, chat=True)


@pytest.mark.parametrize("name", ["finish_reason", "stop_reason", "finishReason"])
def test_why_an_answer_ended_is_no_thought(tmp_path: Path, name: str):
    file = written(tmp_path, {"messages": [ASKED, {**SAID, name: "stop"}]})
    assert len(read_trajectories(file, chat=True).examples) == 1


def test_a_null_for_what_is_not_read_is_nothing(tmp_path: Path):
    """Clients write all fields of an answer, with null for those without a value."""
    file = written(tmp_path, {"messages": [ASKED, {**SAID, "function_call": None, "reasoning_content": ""}]})
    assert len(read_trajectories(file, chat=True).examples) == 1


def test_a_prompt_of_raw_text_has_no_conversations(tmp_path: Path):
    with pytest.raises(UserError, match=r"line 1 has messages, and env.prompt makes raw text"):
        read_trajectories(written(tmp_path, GOOD), chat=False)


def test_files_without_an_answer(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot be read \(No such file"):
        read_trajectories(tmp_path / "none", chat=True)
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory"):
        read_trajectories(tmp_path, chat=True)
    with pytest.raises(UserError, match="has no answer to train on"):
        read_trajectories(written(tmp_path, {"messages": [ASKED, {**SAID, "weight": 0}]}), chat=True)


def test_a_conversation_goes_through_the_chat_template():
    tokenizer = train_tokenizer(["go <action>on</action>"])
    (row,) = encode(tokenizer, [Example(prompt=(ASKED, SAID, ASKED), response="on")],
                    chat=ChatFormat(tokenizer=tokenizer), max_tokens=64)
    assert tokenizer.decode(row.ids[: row.prompt_tokens]) == (
        f"<|user|>go{END}<|assistant|>{SAID['content']}{END}<|user|>go{END}<|assistant|>")


@pytest.mark.skipif("mistral_nemo" not in TOKENIZERS, reason="scripts/setup --test has not fetched it by npm")
def test_a_conversation_with_tools_is_read_as_an_agent_reads_it(tmp_path: Path):
    """Tools are in the prompt, and the result of a call with its id, without which this template refuses it."""
    tools = [tool("add", "Adds.", {"n": {"type": "integer"}})]
    call = {"role": "assistant", "content": '[TOOL_CALLS][{"name": "add", "arguments": {"n": 5}, "id": "0a1b2c3d4"}]'}
    result = {"role": "tool", "content": "6", "name": "add", "tool_call_id": "0a1b2c3d4"}
    end = {"role": "assistant", "content": "Six."}
    file = written(tmp_path, {"tools": tools, "messages": [ASKED, call, result, end]})
    tokenizer = load_tokenizer(TOKENIZERS["mistral_nemo"])
    chat = ChatFormat(tokenizer=tokenizer, tags=frozenset(TAGS))
    first, second = encode(tokenizer, read_trajectories(file, chat=True).examples, chat=chat, max_tokens=999)
    prompt = tokenizer.encode(chat.text([ASKED, call, result], tools), add_special_tokens=False)
    assert second.ids[:second.prompt_tokens].tolist() == prompt
    assert second.ids[:len(first.ids)].tolist() == first.ids.tolist()
    assert "[AVAILABLE_TOOLS]" in tokenizer.decode(prompt)


def test_a_conversation_that_the_template_refuses_is_named():
    tokenizer = train_tokenizer(["go"])
    tokenizer.chat_template = "{{ messages[0].content }}"
    lost = Example(prompt=(ASKED, SAID, {"role": "tool", "content": "6"}), response="on")
    with pytest.raises(UserError, match=r"refuses a conversation of sft.file \(it leaves out message 3, "):
        encode(tokenizer, [lost], chat=ChatFormat(tokenizer=tokenizer), max_tokens=64)
