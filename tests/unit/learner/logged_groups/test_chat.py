"""Episodes as chat messages."""

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import gagpo
from learner.logged_groups import files
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


def test_calls_and_results_in_anthropics_blocks_are_read(tmp_path: Path):
    messages = [{"role": "user", "content": "2 + 3?"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                                  {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 2}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
                    {"type": "text", "text": "5"}]}]},
                {"role": "assistant", "content": [{"type": "text", "text": "It is 5."}]}]
    (group,) = read_chat(write(tmp_path, [{"group": "g", "messages": messages, "reward": 1}] * 2))
    assert [(step.state, step.action) for step in group.episodes[0].steps] == [
        ("2 + 3?", '{"arguments": {"a": 2}, "name": "add"}'), ("5", "It is 5.")]


def test_an_example_counts_within_its_task(tmp_path: Path):
    """verifiers writes the environment's name as `task` of all lines."""
    rows = [{"task": task, "example_id": n, "prompt": "Q", "completion": f"{task}{n}", "reward": 1}
            for task, n in (("a", 0), ("a", 1), ("b", 0), ("a", 0))]
    assert [len(group.episodes) for group in read_chat(write(tmp_path, rows))] == [2, 1, 1]


def test_messages_of_the_assistant_that_follow_one_another_are_one_action(tmp_path: Path):
    """The state of the second would be no text, the same one for all episodes."""
    messages = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "I add."},
                {"role": "assistant", "content": "See."}, {"role": "tool", "content": "5"},
                {"role": "assistant", "content": "5"}, {"role": "user", "content": "Thanks."}]
    (group,) = read_chat(write(tmp_path, [{"task": "t", "messages": messages, "reward": 1}] * 2))
    assert [(step.state, step.action, step.reward) for step in group.episodes[0].steps] == [
        ("2 + 3?", "I add.\nSee.", 0), ("5", "5", 1)]


def test_a_gzip_file_is_read_and_a_damaged_one_named(tmp_path: Path):
    line = json.dumps({"prompt": "Q", "completion": "a", "reward": 1}).encode() + b"\n"
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(line * 2))
    assert len(read_chat(str(path))[0].episodes) == 2
    path.write_bytes(gzip.compress(line * 2)[:-12])
    with pytest.raises(UserError, match="the gzip file is damaged"):
        read_chat(str(path))


def trl(tmp_path: Path, completions: list[object], **columns: list[object]) -> str:
    """Writes what TRL's `log_completions` does of one prompt, and returns its name."""
    count = len(completions)
    path = tmp_path / "completions_00001.parquet"
    parquet.write_table(pa.table({
        "step": [1] * count, "prompt": [[{"role": "user", "content": "2 + 3?"}]] * count, "completion": completions,
        **columns, "advantage": [0.5] * count}), path)
    return str(path)


def test_completions_of_trl_are_read_from_their_parquet(tmp_path: Path):
    calls = [{"function": {"name": name, "arguments": arguments}}
             for name, arguments in (("add", {"a": 2, "b": 3}), ("look", {"at": "it"}))]
    completions = [[{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "5"},
                    {"role": "assistant", "content": "It is 5."}] for call in calls]
    (group,) = read_chat(trl(tmp_path, completions, environment_reward=[1.0, 0.0]))
    assert [[(step.state, step.action, step.reward) for step in episode.steps] for episode in group.episodes] == [
        [("2 + 3?", '{"arguments": {"a": 2, "b": 3}, "name": "add"}', 0), ("5", "It is 5.", 1)],
        [("2 + 3?", '{"arguments": {"at": "it"}, "name": "look"}', 0), ("5", "It is 5.", 0)]], (
        "a field that only the other row has is none of this one")
    (plain,) = read_chat(trl(tmp_path, ["5", "6"], right=[1.0, 0.0], answer=["5", "5"]))
    assert [episode.steps[0].action for episode in plain.episodes] == ["5", "6"]


def test_rewards_that_trl_weights_are_not_summed_by_guess(tmp_path: Path):
    with pytest.raises(UserError, match="line 1: it has no `reward`, and several numbers: right, short"):
        read_chat(trl(tmp_path, ["5"], right=[1.0], short=[0.5]))
    assert read_chat(trl(tmp_path, ["5"], right=[1.0], short=[0.5], reward=[1.5]))[0].episodes[0].steps[0].reward == 1.5


def test_a_parquet_file_is_read_to_a_limit_and_a_damaged_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = trl(tmp_path, ["x" * 4000] * 4, right=[1.0] * 4)
    monkeypatch.setattr(files, "LINES_BYTES", 8000)
    with pytest.raises(UserError, match=r"completions_00001\.parquet"):
        read_chat(name)
    Path(name).write_bytes(Path(name).read_bytes()[:-10])
    with pytest.raises(UserError, match="its parquet cannot be read"):
        read_chat(name)


@pytest.mark.parametrize(("row", "match"), [
    ({"messages": [{"role": "assistant", "content": "a"}]}, "line 1: it has neither `reward` nor `score`"),
    ({"messages": [{"role": "user", "content": "a"}], "reward": 1}, "line 1: it has no message of the assistant"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "Assistant", "content": "b"}], "reward": 1},
     "no message of the assistant; its roles are 'user', 'Assistant'; write the policy's as 'assistant'"),
    ({"messages": [{"role": "user", "text": "a"}, {"role": "assistant", "content": "b"}], "reward": 1, "group": "g"},
     r"line 1: message 0 \(of user\) has no `content`"),
    ({"conversations": [{"from": "human", "value": "a"}], "reward": 1},
     "line 1: it has no `messages`, but conversations, reward"),
    ({"input": "a", "output": "b", "score": 1}, "it has no `messages`, but input, output, score; give --from verl"),
    ({"messages": "a", "reward": 1}, "line 1: Expected"),
    ({"messages": [{"role": "assistant", "content": "a"}], "reward": 1}, "line 1: its group is unknown: it has no text "
     "before the first answer"),
    ({"prompt": "Q", "completion": "a", "reward": 0.0, "error": {"error": "SandboxError"}},
     "line 1: its episode broke off .*SandboxError.*; leave out the lines with an `error`"),
])
def test_a_line_without_what_credit_needs_is_refused(tmp_path: Path, row: object, match: str):
    with pytest.raises(UserError, match=match):
        read_chat(write(tmp_path, [row]))


@pytest.mark.parametrize(("line", "match"), [
    (b'{"messages": [{"role": "user", "content": "Q"}], "by": "caf\xe9"}', "line 1: 'utf-8' codec can't decode"),
    (b'{"messages": [{"role": "user", "content": "Q"}], "cost": 1e999}', "line 1: Number out of range"),
    (b'{"messages": [{"role": "user", "content": "Q"}], "reward": NaN}', "line 1: JSON is malformed: NaN is no number"),
    (b'{"messages": [{"role": "user", "content": "Q"}], "reward": -Infinity}', "line 1: .*: -Infinity is no number"),
    (b'{"messages": [{"role": "assistant", "tool_calls": [{"function": "go"}]}], "reward": 1}',
     r"line 1: Expected `object \| null`, got `str`"),
    (b'{"step": 1, "prompt": "Q", "completion": "a", "advantage": 0.5, "right": 1e200}',
     r"line 1: right is 1e\+200, and at most 1e\+100 in size is taken")])
def test_a_field_that_cannot_be_read_is_named(tmp_path: Path, line: bytes, match: str):
    path = tmp_path / "results.jsonl"
    path.write_bytes(line)
    with pytest.raises(UserError, match=match):
        read_chat(str(path))


def test_a_call_may_have_its_name_itself(tmp_path: Path):
    for extra in ({}, {"function": None}):
        asked = {"role": "assistant", "tool_calls": [{"name": "go", "arguments": {"to": "hall"}, **extra}]}
        (group,) = read_chat(write(tmp_path, [{"group": 1, "messages": [asked], "reward": 1}]))
        assert group.episodes[0].steps[0].action == '{"arguments": {"to": "hall"}, "name": "go"}'


def test_a_call_in_the_older_form_is_an_action(tmp_path: Path):
    """It was left out, and the action was empty."""
    asked = {"role": "assistant", "content": None, "function_call": {"name": "go", "arguments": "{}"}}
    (group,) = read_chat(write(tmp_path, [{"group": 1, "messages": [asked], "reward": 1}]))
    assert group.episodes[0].steps[0].action == '{"arguments": "{}", "name": "go"}'


def test_unlike_pictures_are_unlike_states(tmp_path: Path):
    """They were left out, and what followed each screenshot was averaged."""
    def line(picture: str, kind: str = "image_url") -> dict[str, object]:
        parts = [{"type": "text", "text": "Screenshot:"}, {"type": kind, "image_url": {"url": picture}}, "now"]
        return {"group": 1, "reward": 1, "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": picture}, "a"]}]}

    (group,) = read_chat(write(tmp_path, [line("data:A"), line("data:B"), line("data:A")]))
    first, second, third = (episode.steps[0] for episode in group.episodes)
    assert first.state == third.state != second.state
    assert re.fullmatch(r"Screenshot:\n\[image_url [0-9a-f]{8}\]\nnow", first.state)
    assert {first.action, second.action} == {"a"}, "thoughts are no part of it"


def test_rows_of_trl_of_another_step_are_another_group(tmp_path: Path):
    """Their policies differ."""
    name = trl(tmp_path, ["5", "6"], right=[1.0, 0.0])
    table = parquet.read_table(name)
    later = table.set_column(0, "step", pa.array([2, 2]))
    parquet.write_table(pa.concat_tables([table, later]), name)
    assert [(group.id, len(group.episodes)) for group in read_chat(name)] == [
        ("step 1: 2 + 3?", 2), ("step 2: 2 + 3?", 2)]


@pytest.mark.parametrize("field", ["group", "task", "uid"])
def test_an_empty_name_names_no_group(tmp_path: Path, field: str):
    """Otherwise the tasks of all such lines would be compared as one."""
    rows = [{field: "", "prompt": prompt, "completion": "a", "reward": 1.0} for prompt in ("Q", "R", "Q")]
    assert [len(group.episodes) for group in read_chat(write(tmp_path, rows))] == [2, 1]


@pytest.mark.parametrize(("groups", "match"), [
    ([{"episodes": [{"steps": [{"state": "S", "reward": 1}]}]}] * 2, "every group has one episode"),
    ([{"episodes": [{"steps": [{"state": "S", "reward": 1}]}] * 2}], "no step has an advantage"),
    ([{"episodes": [{"steps": [{"state": s, "reward": k} for s in "ST"]} for k in range(n)]} for n in (1, 3)],
     "1 of 2 groups have one episode, which nothing can be compared with"),
    ([{"episodes": [{"steps": [{"state": f"{k}{t}", "reward": k} for t in "abc"]} for k in (0, 1)]}],
     "100% of the steps are alone in their state"),
    ([{"episodes": [{"steps": [{"state": "S", "reward": k}]} for k in (0, 1)]}], "every episode has one step"),
    ([{"episodes": [{"steps": [{"state": s, "reward": k} for s in ("S", "", "T")]} for k in (0, 1)]}],
     "2 of 4 later steps have an empty state, and count as one state"),
    ([{"episodes": [{"steps": [{"state": s, "reward": k} for s in (start, "T")]} for k, start in enumerate("AB")]}],
     "in 1 of 1 group the episodes begin in different states"),
])
def test_credit_that_is_worth_little_says_so(groups: list[object], match: str):
    with pytest.warns(UserWarning, match=match):
        gagpo.credit(groups)
