"""Dumps as verl writes them, and as verl-agent does once the fields that credit needs are added."""

import json

import pytest

from learner.logged_groups import files
from learner.logged_groups.files import read_groups
from learner.logged_groups.form import credit_of, credit_options, parse_group
from learner.logged_groups.verl import read_verl
from services.errors import UserError


def write(tmp_path, rows):
    path = tmp_path / "1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def steps(group):
    return [[(step.state, step.action, step.reward) for step in episode.steps] for episode in group.episodes]


def first_actions(path):
    return [[row[0][1] for row in steps(group)] for group in read_verl(path)]


def episode(prompt, output, score, **more):
    return {"input": prompt, "output": output, "gts": None, "score": score, "step": 1, **more}


def turn(uid, traj, number, reward, **more):
    return {"input": f"prompt {number}", "output": f"act {number}", "score": 10.0, "step": 1, "uid": uid,
            "traj_uid": traj, "turn": number, "rewards": reward, "anchor_obs": f"room {number}",
            "is_action_valid": True, **more}


def test_a_conversation_becomes_steps_with_what_each_answers(tmp_path):
    talk = "assistant\nlet me look\ntool\n5\n\nassistant\nand again\nuser\nhm\ntool\n6\nassistant\nit is 6"
    (group,) = read_verl(write(tmp_path, [episode("Q", talk, 1), episode("Q", "it is 7", 0)]))
    assert steps(group) == [[("Q", "let me look", 0), ("5", "and again", 0), ("hm\n6", "it is 6", 1)],
                            [("Q", "it is 7", 0)]]


def test_episodes_of_one_prompt_are_a_group_unless_a_uid_says_more(tmp_path):
    rows = [episode("Q", "a", 1), episode("R", "b", 0), episode("Q", "c", 0), episode("R", "d", 0)]
    assert first_actions(write(tmp_path, rows)) == [["a", "c"], ["b", "d"]]
    named = [row | {"uid": uid} for row, uid in zip(rows, "xxyy", strict=True)]
    assert first_actions(write(tmp_path, named)) == [["a", "b"], ["c", "d"]]


def test_uids_that_name_rows_give_group_episode_and_order(tmp_path):
    rows = [episode("Q", "a", 1, uid="A_0_0"), episode("Q", "b", 0, uid="A_1_0")]
    (group,) = read_verl(write(tmp_path, rows))
    assert (group.id, [[step.action for step in one.steps] for one in group.episodes]) == ("A", [["a"], ["b"]])
    credit, = credit_of([group], credit_options({}))
    assert credit.advantages == [[pytest.approx(0.5**0.5, abs=1e-5)], [pytest.approx(-(0.5**0.5), abs=1e-5)]]


def test_outputs_of_one_session_are_the_steps_of_one_episode_and_repeat_its_score(tmp_path):
    rows = [episode("Q then b", "second", 1, uid="A_0_1"), episode("Q", "first", 1, uid="A_0_0"),
            episode("Q", "alone", 0, uid="A_1_0"), episode("R", "own", 0.5, uid="B_0_0"),
            episode("R2", "scores", 1, uid="B_0_1")]
    one, two = read_verl(write(tmp_path, rows))
    assert steps(one) == [[("Q", "first", 0), ("Q then b", "second", 1)], [("Q", "alone", 0)]]
    assert steps(two) == [[("R", "own", 0.5), ("R2", "scores", 1)]]


def test_uids_that_repeat_are_groups_whatever_their_form(tmp_path):
    rows = [episode("Q", "a", 1, uid="task_3_1"), episode("Q", "b", 0, uid="task_3_1")]
    assert first_actions(write(tmp_path, rows)) == [["a", "b"]]


@pytest.mark.parametrize("uids", [("", ""), ("x", "x"), ("0_0_0", "0_1_0")], ids=["none", "of groups", "of rows"])
def test_episodes_of_two_training_steps_are_never_one_group(tmp_path, uids):
    """Dumps of all steps in one file. Two policies played them, and an `input` or a number of a prompt comes again."""
    rows = [episode("Q", f"{step}{k}", k, **({"uid": uid} if uid else {})) | {"step": step}
            for step in (1, 2) for k, uid in enumerate(uids)]
    assert first_actions(write(tmp_path, rows)) == [["10", "11"], ["20", "21"]]


def test_a_mark_that_decoding_glued_to_a_closing_tag_divides_turns(tmp_path):
    """Four episodes of which only those that look find the drawer, worked by hand: V(Q) = 0.95 / 4, V(drawer) = 0.5."""
    def talk(action, seen):
        return f"<tool_call>{action}</tool_call>user\n{seen}\nassistant\n<tool_call>open</tool_call>"

    rows = [episode("Q", talk(*turns), won, uid="g") for *turns, won in (
        ("look", "a drawer", 1), ("look", "a drawer", 0), ("sit", "nothing", 0), ("sit", "nothing", 0))]
    credit, = credit_of(read_verl(write(tmp_path, rows)), credit_options({}))
    assert [[round(a, 2) for a in row] for row in credit.advantages] == [
        [1.62, 1.31], [-0.37, -1.31], [-0.62, 0.0], [-0.62, 0.0]]


@pytest.mark.parametrize(("turn", "end"), [
    ("<|im_end|>\n<|im_start|>{}\n", "<|im_end|>"),
    ("<|eot_id|><|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
    ("<end_of_turn>\n<start_of_turn>{}\n", "<end_of_turn>"),
    ("<|end|>\n<|{}|>\n", "<|end|>"),
    ("<|{}|>\n", ""),
], ids=["ChatML", "Llama 3", "Gemma", "Phi 3", "GLM"])
def test_special_tokens_of_chat_formats_divide_turns(tmp_path, turn, end):
    speaker = "model" if "start_of_turn" in turn else "assistant"
    talk = f"look{turn.format('user' if end else 'observation')}a drawer{turn.format(speaker)}open{end}"
    (group,) = read_verl(write(tmp_path, [episode("Q", talk, 1)] * 2))
    assert steps(group)[0] == [("Q", "look", 0), ("a drawer", "open", 1)]


@pytest.mark.parametrize("talk", [
    "look<｜User｜>a drawer<｜Assistant｜>open", "look</s>[INST]a drawer[/INST]open</s>",
    "look<|im_end|><|im_user|>user<|im_middle|>a drawer<|im_end|><|im_assistant|>assistant<|im_middle|>open",
    "look<|end|><|start|>user<|message|>a drawer<|end|><|start|>assistant<|message|>open<|return|>",
], ids=["DeepSeek", "Mistral", "Kimi", "GPT-OSS"])
def test_turns_that_other_marks_divide_are_not_taken_for_one(tmp_path, talk):
    with pytest.raises(UserError, match=r"line 1: \S+ divides its turns, and that mark is not read; write"):
        read_verl(write(tmp_path, [episode("Q", talk, 1)] * 2))


def test_an_answer_after_an_answer_has_no_state_and_is_refused(tmp_path):
    with pytest.raises(UserError, match="line 1: nothing stands between answers 1 and 2 of its `output`"):
        read_verl(write(tmp_path, [episode("Q", "look\nassistant\nopen", 1)] * 2))


@pytest.mark.parametrize(("row", "match"), [
    ({"input_prompt": "Q", "output_response": "a", "score": 1}, "this is a dump of SkyRL"),
    ({"prompt": "Q", "completion": "a", "reward": 1}, "this is a dump of verifiers or TRL; give --from chat"),
    ({"messages": [], "reward": 1}, "this is a dump of chat messages; give --from chat"),
])
def test_dumps_of_other_programs_are_named(tmp_path, row, match):
    with pytest.raises(UserError, match=match):
        read_verl(write(tmp_path, [row]))


def test_a_uid_makes_a_group_of_one_episode_too(tmp_path):
    """A run that filters episodes may leave one. Without a `uid` the line may as well be a step of verl-agent."""
    rows = [episode("Q", "a", 1, uid="x"), episode("Q", "b", 0, uid="x"), episode("R", "c", 1, uid="y")]
    assert first_actions(write(tmp_path, rows)) == [["a", "b"], ["c"]]
    groups = read_verl(write(tmp_path, rows))
    assert credit_of(groups, credit_options({}))[1].advantages == [[0.0]]


def test_steps_of_verl_agent_are_put_in_order_and_repeats_left_out(tmp_path):
    rows = [turn("g", "e1", 1, 10.0), turn("g", "e2", 0, 0.0, is_action_valid=False), turn("g", "e1", 0, 0.0),
            turn("g", "e1", 1, 10.0)]
    (group,) = read_verl(write(tmp_path, rows))
    assert group.id == "g"
    assert steps(group) == [[("room 0", "act 0", 0), ("room 1", "act 1", 10)], [("room 0", "act 0", 0)]]
    assert group.episodes[1].steps[0].invalid
    credit, = credit_of([group], credit_options({"normalize": "none", "penalty": 0.0}))
    assert credit.values["room 0"] == (4.75, 2)


@pytest.mark.parametrize(("rows", "match"), [
    ([{"input": "Q", "output": "a"}], "line 1: .*`score`"),
    ([episode("Q", "a", 1), episode("Q", "b", 1), episode("R", "c", 1)],
     "line 3: its group is unknown: it has no `uid`, and no other line without a `uid` has its `input`; give each"),
    ([turn("g", "e", 0, 1.0), {"output": "a", "input": "b", "traj_uid": "e", "uid": "g", "rewards": 1.0}],
     "line 2: .*`turn`"),
    ([turn("g", "e", 1, 1.0)], "turn 0 of the episode e is missing"),
    ([turn("g", "e", 0, 0.0), turn("g", "e", 0, 1.0)], "line 2: turn 0 of the episode e is there twice, and differs"),
    ([episode("Q", "a", None)], r"line 1: Expected `float`, got `null` - at `\$.score`"),
    ([[]], "line 1: Expected `object`"),
    ([], "has no lines"),
])
def test_a_missing_part_is_one_line(tmp_path, rows, match):
    with pytest.raises(UserError, match=match) as caught:
        read_verl(write(tmp_path, rows))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path)), "it names the file"


def test_input_beyond_its_bound_is_refused_before_it_is_held(tmp_path, monkeypatch):
    path = write(tmp_path, [{"episodes": [{"steps": [{"state": "S", "reward": 1}]}]}] * 3)
    assert len(read_groups(path)) == 3
    monkeypatch.setattr(files, "LINES_BYTES", 120)
    with pytest.raises(UserError, match="line 3: the input has more than"):
        read_groups(path)
    monkeypatch.setattr(files, "JSON_BYTES", 20)
    with pytest.raises(UserError, match="line 1 has more than"):
        read_groups(path)
    for bad in (str(tmp_path), "/dev/zero", str(tmp_path / "none")):
        with pytest.raises(UserError):
            read_groups(bad)


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    made = parse_group({"episodes": [{"steps": [{"state": "S", "reward": np.float32(0.5), "invalid": np.True_}]}]})
    assert (made.episodes[0].steps[0].reward, made.episodes[0].steps[0].invalid) == (0.5, True)
    with pytest.raises(UserError, match="object is no text"):
        parse_group({"episodes": [{"steps": [{"state": "S", "reward": object()}]}]})


def test_a_wrong_field_of_a_mapping_is_told_without_options_of_the_command():
    """A caller in Python was told to give --from."""
    with pytest.raises(UserError, match=r"^Object contains unknown field `prompt`; docs/tasks/logged-episodes\.md has"):
        parse_group({"prompt": "x", "completion": "y"})
