"""Episodes as chat messages."""

import gzip
import json
from pathlib import Path

import pytest

import gagpo
from learner.logged_groups.chat import read_chat
from services.errors import UserError


def write(tmp_path: Path, rows: list[object]) -> str:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": "1", "type": "function",
                            "function": {"name": name, "arguments": json.dumps(arguments)}}]}


def test_answers_of_the_assistant_are_steps_and_tool_results_their_states(tmp_path: Path):
    messages = [{"role": "user", "content": "2 + 3?"}, call("add", a=2, b=3), {"role": "tool", "content": "5"},
                {"role": "assistant", "content": "It is 5."}]
    (group,) = read_chat(write(tmp_path, [{"task": "t", "messages": messages, "reward": 1}] * 2))
    assert [(step.state, step.action, step.reward) for step in group.episodes[0].steps] == [
        ("2 + 3?", '{"arguments": "{\\"a\\": 2, \\"b\\": 3}", "name": "add"}', 0), ("5", "It is 5.", 1)]
    assert len(group.episodes) == 2


def test_lines_of_one_example_are_a_group(tmp_path: Path):
    prompt = [{"role": "user", "content": [{"type": "text", "text": "Q"}]}]
    rows = [{"example_id": n, "prompt": prompt, "completion": [{"role": "assistant", "content": text}], "reward": won}
            for n, text, won in ((1, "a", 1), (2, "b", 0), (1, "c", 0), (2, "d", 0))]
    groups = read_chat(write(tmp_path, rows))
    assert [[episode.steps[0].action for episode in group.episodes] for group in groups] == [["a", "c"], ["b", "d"]]
    assert groups[0].episodes[0].steps[0].state == "Q"


def test_a_gzip_file_is_read_and_a_damaged_one_named(tmp_path: Path):
    line = json.dumps({"messages": [{"role": "assistant", "content": "a"}], "reward": 1}).encode() + b"\n"
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(line * 2))
    assert len(read_chat(str(path))[0].episodes) == 2
    path.write_bytes(gzip.compress(line * 2)[:-12])
    with pytest.raises(UserError, match="the gzip file is damaged"):
        read_chat(str(path))


@pytest.mark.parametrize(("row", "match"), [
    ({"messages": [{"role": "assistant", "content": "a"}]}, "line 1: it has neither `reward` nor `score`"),
    ({"messages": [{"role": "user", "content": "a"}], "reward": 1}, "line 1: no message of it is the assistant's"),
    ({"messages": "a", "reward": 1}, "line 1: Expected"),
])
def test_a_line_without_what_credit_needs_is_refused(tmp_path: Path, row: object, match: str):
    with pytest.raises(UserError, match=match):
        read_chat(write(tmp_path, [row]))


@pytest.mark.parametrize(("groups", "match"), [
    ([{"episodes": [{"steps": [{"state": "S", "reward": 1}]}]}] * 2, "every group has one episode"),
    ([{"episodes": [{"steps": [{"state": "S", "reward": 1}]}] * 2}], "no step has an advantage"),
    ([{"episodes": [{"steps": [{"state": f"{k}{t}", "reward": k} for t in "abc"]} for k in (0, 1)]}],
     "100% of the steps are alone in their state"),
    ([{"episodes": [{"steps": [{"state": "S", "reward": k}]} for k in (0, 1)]}], "every episode has one step"),
])
def test_credit_that_is_worth_little_says_so(groups: list[object], match: str):
    with pytest.warns(UserWarning, match=match):
        gagpo.credit(groups)
