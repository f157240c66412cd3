"""Trajectories from a file: both forms, what of them is trained on, and the line that an error names."""

import json
from pathlib import Path

import pytest

from learner.cold_start.sft_data import Example, encode
from learner.cold_start.tokenizer import END, train_tokenizer
from learner.cold_start.trajectories import read_trajectories
from services.chat import ChatFormat
from services.errors import UserError

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
    ({"messages": [ASKED, {"role": "assistant", "content": None}]}, "$.messages[1].content"),
    ({"messages": [ASKED]}, "has no message of the assistant"),
    ({"messages": []}, "has no message of the assistant"),
    ({"messages": [SAID, ASKED]}, "begins with the assistant"),
    ({"messages": [ASKED, {**SAID, "content": ""}]}, "message 2 is an empty answer"),
    ({"messages": [ASKED, {**SAID, "weight": 2}]}, "$.messages[1].weight"),
    ({"conversations": []}, "has neither messages nor steps"),
    ({"messages": [ASKED, SAID], "steps": []}, "has both messages and steps"),
    ({"messages": [], "steps": []}, "has both messages and steps"),
    ({"steps": [{"prompt": "a", "response": ""}]}, "step 1 has an empty response"),
    ({"steps": [{"prompt": "a"}]}, "missing required field `response`")])
def test_a_wrong_line_is_named(tmp_path: Path, line: str | dict, text: str):
    file = written(tmp_path, GOOD, line)
    with pytest.raises(UserError) as raised:
        read_trajectories(file, chat=True)
    assert f"{file} line 2" in str(raised.value)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


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
