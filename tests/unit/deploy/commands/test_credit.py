import io
import json

import pytest

from deploy.cli import parse
from learner.credit.registry import declared, make_options
from services.errors import UserError

EX2 = [[("S", 0), ("U", 0), ("M", 10)], [("S", 0), ("W", 0), ("M", 0), ("E", 0)]]


def run(monkeypatch, capsys, text, *arguments):
    args = parse(["credit", *arguments])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert args.run(args) == 0
    return capsys.readouterr().out


def group(episodes):
    return json.dumps({"episodes": [{"steps": [{"state": s, "reward": r, "invalid": False} for s, r in episode]}
                                    for episode in episodes]})


def test_json_has_the_fixed_form(monkeypatch, capsys):
    out = json.loads(run(monkeypatch, capsys, group(EX2)))
    assert set(out) == {"returns", "values", "deltas", "raw_advantages", "advantages", "warnings"}
    assert out["values"]["M"] == [5.0, 2]
    assert out["advantages"][0] == pytest.approx([1.0346, -0.2593, 1.3647], abs=5e-5)
    assert [len(row) for row in out["deltas"]] == [3, 4]
    own = json.loads(run(monkeypatch, capsys, group(EX2), "--estimator", "gagpo_boot"))["baselines"]
    assert [own[0][1], own[1][1]] == [4.75, 4.75]  # U and W are worth what follows them, and not their own returns


def test_options_reach_the_estimator(monkeypatch, capsys):
    out = json.loads(run(monkeypatch, capsys, group(EX2), "--gamma", "0.5", "--lam", "0", "--normalize", "none"))
    assert out["advantages"] == out["raw_advantages"] == out["deltas"]
    assert out["returns"][0] == [2.5, 5, 10]


@pytest.mark.parametrize(("arguments", "idle"), [
    (["--estimator", "grpo", "--lam", "1", "--state-key", "normalized"], ["state-key", "lam"]),
    (["--estimator", "grpo", "--lam", "0.8"], []),  # the default
    (["--penalty", "0.2", "--penalty-mode", "none"], ["penalty"]),
    (["--state-key", "similarity", "--similarity", "0.9", "--normalize", "batch"], []),
])
def test_an_option_that_does_nothing_is_told(monkeypatch, capsys, arguments, idle):
    args = parse(["credit", *arguments])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(group(EX2).encode())))
    assert args.run(args) == 0
    why = f"does nothing under the estimator {args.estimator}"
    warnings = [line for line in capsys.readouterr().err.splitlines() if "of the steps are alone" not in line]
    assert sorted(warnings) == sorted(f"warning: --{name} {why}" for name in idle)


def test_an_option_of_another_state_key_is_told_as_such_to_people_and_to_programs(monkeypatch, capsys):
    args = parse(["credit", "--similarity", "0.9"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(group(EX2).encode())))
    assert args.run(args) == 0
    shown = capsys.readouterr()
    first, second = shown.err.splitlines()
    assert [f"warning: {text}" for text in json.loads(shown.out)["warnings"]] == [first, second]
    assert first == "warning: --similarity does nothing under the state key observation"
    assert second.startswith("warning: 43% of the steps are alone in their state")


def test_states_that_pool_other_lists_of_admissible_actions_name_the_key_that_tells_them_apart(monkeypatch, capsys):
    """Two steps read the same text with other actions to choose from; the first step of each has one list."""
    episodes = [{"steps": [{"state": "S", "action": "go", "reward": 0, "admissible": ["go"]},
                           {"state": "Nothing happens.", "action": "go", "reward": won,
                            "admissible": ["go", str(won)]}]}
                for won in (0, 1)]
    line = "warning: 50% of the steps share their state mostly with steps that had other admissible actions"
    for options, told in (((), 1), (("--state-key", "observation+admissible"), 0), (("--estimator", "grpo"), 0)):
        args = parse(["credit", *options])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps({"episodes": episodes}).encode())))
        assert args.run(args) == 0
        lines = [found for found in capsys.readouterr().err.splitlines() if found.startswith(line)]
        assert len(lines) == told
        assert all(found.endswith("set state_key=observation+admissible") for found in lines)


def test_a_file_and_the_table(monkeypatch, capsys, tmp_path):
    path = tmp_path / "group.json"
    path.write_text(group(EX2))
    lines = run(monkeypatch, capsys, "", str(path), "--table").splitlines()
    assert lines[0].split() == ["episode", "step", "state", "return", "value", "count", "delta", "raw", "advantage"]
    assert len(lines) == 9
    assert lines[1].split()[-1] == "1.0346"
    assert lines[-1] == ("steps per state: 1.40; share of steps whose state has "
                         "1: 42.9%, 2-4: 57.1%, 5-8: 0.0%, >8: 0.0%")


def test_the_table_shows_long_states_on_one_line(monkeypatch, capsys):
    """Texts as environments send them, with line breaks and hundreds of characters. Many differ at their end alone."""
    text = "You arrive.\n\n" + "x" * 500 + " at night"
    lines = run(monkeypatch, capsys, group([[(text, 1)]]), "--table").splitlines()
    assert lines[1].split()[2:5] == ["You", "arrive.", "x" * 17 + "…" + "x" * 21]


def test_the_table_shows_the_value_that_each_step_was_measured_by(monkeypatch, capsys):
    """Estimators whose value is not the state's alone: A at S is 10 - 0 and 0 - 10, each against the other."""
    out = run(monkeypatch, capsys, group([[("S", 10)], [("S", 0)]]), "--table", "--estimator", "gagpo_loo")
    head, first, second, _ = (line.split() for line in out.splitlines())
    assert "count" not in head
    assert float(first[head.index("value")]) != float(second[head.index("value")])


def test_every_key_of_the_config_is_an_option(monkeypatch, capsys):
    """A new switch of credit can be seen at work here. `values` is that of an estimator which is refused."""
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "", "--help")
    shown = capsys.readouterr().out
    for name in declared(make_options()).keys() - {"values"}:
        assert f"--{name.replace('_', '-')}" in shown
    assert "gagpo, " in shown


def test_a_key_that_two_estimators_read_otherwise_is_explained_for_each(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "as a number of turns of other episodes. (default 2.0; for gagpo_loo) κ: weight of the mean start" in shown
    assert "(default 1.0; for gigpo, g2po, graphhca, rlvmr) (default 5.0; for crbc)" in shown
    assert "Discount γ per turn. (default 0.95) (default 0.99; for graft) (default 0.98; for crbc)" in shown


@pytest.mark.parametrize(("estimator", "missing", "said"), [
    ("adastep", "action", "step 1 of episode 0 of group 7 has no action, and the estimator adastep compares actions"),
    ("rlvmr", "tag", "no step has a tag, and the estimator rlvmr rewards kinds of reasoning by their tags"),
    ("rlvmr", "action", "step 1 of episode 0 of group 7 has no action, and the estimator rlvmr compares actions")])
def test_an_estimator_is_refused_if_the_input_lacks_what_it_compares(monkeypatch, capsys, estimator, missing, said):
    """An answer may lack a tag; that all answers lack one means that nobody logged them."""
    steps = [{"state": "S", "reward": 0, "action": "a", "tag": ""},
             {"state": "X", "reward": 8, "action": "b", "tag": "explore"}]
    run(monkeypatch, capsys, json.dumps({"id": "7", "episodes": [{"steps": steps}]}), "--estimator", estimator)
    del steps[1][missing]
    with pytest.raises(UserError) as refused:
        run(monkeypatch, capsys, json.dumps({"id": "7", "episodes": [{"steps": steps}]}), "--estimator", estimator)
    assert said in str(refused.value)


def test_a_listed_action_with_a_placeholder_admits_what_fills_it(monkeypatch, capsys):
    """As in a run. `rlvmr` rewards a reflection after an inadmissible action; an empty list admits all."""
    def advantages(listed):
        steps = [{"state": "S", "reward": 0, "action": "search[red shoes]", "tag": "explore", "admissible": listed},
                 {"state": "X", "reward": 0, "action": "buy", "tag": "reflection"}]
        other = [{"state": "S", "reward": 0, "action": "buy", "tag": "reflection"}]
        logged = json.dumps({"episodes": [{"steps": steps}, {"steps": [*other, *other]}]})
        return json.loads(run(monkeypatch, capsys, logged, "--estimator", "rlvmr"))["advantages"]

    assert advantages(["search[<query>]"]) == advantages([]) == advantages(None)
    assert advantages(["search[<query>]"]) != advantages(["click[back]"])


def test_a_bootstrap_ends_in_the_final_state(monkeypatch, capsys):
    """γ = 1/2: the second episode was cut off in X, which is worth 8: δ_S = ½·8 - V̄(S) = 4 - 2, not -2.

    V̄ itself stays: S has returns 4 and 0.
    """
    data = {"episodes": [{"steps": [{"state": "S", "reward": 0}, {"state": "X", "reward": 8}]},
                         {"steps": [{"state": "S", "reward": 0}], "final_state": "X"}]}
    for option, delta in (("--bootstrap", 2), ("--no-bootstrap", -2)):
        out = json.loads(run(monkeypatch, capsys, json.dumps(data), "--gamma", "0.5", option))
        assert out["values"] == {"S": [2, 2], "X": [8, 1]}
        assert out["deltas"] == [[2, 0], [delta]]


def test_a_final_state_is_pooled_too(monkeypatch, capsys):
    data = {"episodes": [{"steps": [{"state": "S", "reward": 0}, {"state": "Drawer 1", "reward": 8}]},
                         {"steps": [{"state": "S", "reward": 0}], "final_state": "drawer 7!"}]}
    for key, delta in (("normalized", 2), ("observation", -2)):
        options = ("--gamma", "0.5", "--bootstrap", "--state-key", key)
        out = json.loads(run(monkeypatch, capsys, json.dumps(data), *options))
        assert out["deltas"][1] == [delta]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"episodes": []}', "episodes: "),
        ('{"episodes": [{"steps": []}]}', r"episodes\.0\.steps: "),
        ('{"episodes": [{"steps": [{"state": "S", "reward": NaN}]}]}', "input line 1: JSON is malformed"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1e300}]}]}', r"episodes\.0\.steps\.0\.reward: "),
        ('{"episodes": [{"steps": [{"state": "S", "reward": "1"}]}]}', r"episodes\.0\.steps\.0\.reward: "),
        ('{"episodes": [{"steps": [{"state": 1, "reward": 1}]}]}', r"episodes\.0\.steps\.0\.state: "),
        ('{"episodes": [{"steps": [{"state": "S"}]}]}', r"episodes\.0\.steps\.0: .*`reward`"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1, "invalid": 1}]}]}', r"steps\.0\.invalid: "),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1, "action": 1}]}]}', r"steps\.0\.action: "),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1, "rewrad": 1}]}]}', r"steps\.0: .*`rewrad`"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1}], "final_state": 3}]}', r"episodes\.0\.final_state: "),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1}], "final": "S"}]}', r"episodes\.0: .*`final`"),
        ("[]", "standard input line 1: Expected `object`"),
        ("{", "standard input: Input data was truncated"),
        ("", "standard input is empty"),
    ],
)
def test_bad_input_names_the_field_in_one_line(monkeypatch, capsys, text, field):
    with pytest.raises(UserError, match=field) as caught:
        run(monkeypatch, capsys, text)
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_one_line(monkeypatch, capsys, tmp_path):
    for arguments, match in [
        (["--estimator", "gagp"], "use one of: gagpo"),
        (["--estimator", "ppo"], "option estimator ppo: it needs a critic"),
        (["--estimator", "reinforce_pp"], "option estimator reinforce_pp: it needs response tokens"),
        (["--gamma", "1.5"], "option gamma"),
        (["--gamma", "nan"], "option gamma"),
        (["--omega", "-1"], "option omega"),
        (["--similarity", "1"], "option similarity"),
        (["--state-key", "prompt"], "option state_key prompt: the input has texts"),
        (["--state-key", "prompt", "--bootstrap"], "option state_key prompt: the input has texts"),
        (["--state-key", "observation+admissible"], "no step has a list of admissible actions, and the state key"),
        (["--from", "verl"], "standard input: line 1: "),
        (["--from", "agents"], "standard input: line 1: "),
        ([str(tmp_path / "none.json")], "cannot read"),
    ]:
        with pytest.raises(UserError, match=match) as caught:
            run(monkeypatch, capsys, group(EX2), *arguments)
        assert "\n" not in str(caught.value)


def test_a_file_that_windows_wrote_is_read_and_utf_16_is_told(monkeypatch, capsys, tmp_path):
    path = tmp_path / "group.json"
    verl = json.dumps({"input": "q", "output": "a", "score": 1, "uid": "u"})
    for text, source in ((group(EX2), "gagpo"), (f"{group(EX2)}\r\n{group(EX2)}", "gagpo"), (verl, "verl")):
        path.write_text(text, encoding="utf-8-sig")
        assert "advantage" in run(monkeypatch, capsys, "", str(path), "--from", source, "--table")
        path.write_text(text, encoding="utf-16")
        with pytest.raises(UserError, match=r"group\.json.* is UTF-16; save it as UTF-8"):
            run(monkeypatch, capsys, "", str(path), "--from", source)


def test_each_choice_that_the_help_names_reads_a_whole_file(monkeypatch, capsys):
    step = {"state": "S", "reward": 0, "action": "a", "tag": "explore", "admissible": ["a"]}
    with pytest.raises(SystemExit):
        parse(["credit", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for option, place, last in (("--estimator", "ESTIMATOR one of ", ", or module:Name"),
                                ("--state-key", "STATE_KEY one of ", "; default")):
        for name in told.partition(place)[2].partition(last)[0].split(", "):
            run(monkeypatch, capsys, json.dumps({"episodes": [{"steps": [step]}]}), option, name)


def test_each_line_is_a_group_with_its_id_and_its_actions(monkeypatch, capsys):
    one = '{"id": "a", "episodes": [{"steps": [{"state": "S", "action": "go north", "reward": 1}]}]}'
    two = '{"episodes": [{"steps": [{"state": "S", "reward": 3}]}]}'
    first, second = map(json.loads, run(monkeypatch, capsys, f"{one}\n\n{two}\n").splitlines())
    assert (first["id"], first["actions"], first["returns"]) == ("a", [["go north"]], [[1.0]])
    assert set(second) == {"returns", "values", "deltas", "raw_advantages", "advantages", "warnings"}
    assert second["returns"] == [[3]]
    lines = run(monkeypatch, capsys, f"{one}\n{two}", "--table").splitlines()
    assert lines[0] == "group 1: a"
    assert lines[1].split()[2:4] == ["state", "action"]
    assert lines[2].split()[2:5] == ["S", "go", "north"]
    assert lines[5] == "group 2"


def test_the_groups_of_a_file_are_those_of_one_learner_step(monkeypatch, capsys):
    """`batch`: raw advantages 5, -5, 0, 0 are divided by the deviation of all four, √(50/3)."""
    text = group([[("S", 10)], [("S", 0)]]) + "\n" + group([[("S", 0)], [("S", 0)]])
    first, second = map(json.loads, run(monkeypatch, capsys, text, "--normalize", "batch").splitlines())
    assert first["advantages"][0] == pytest.approx([5 / (50 / 3) ** 0.5], abs=1e-5)
    assert second["advantages"] == [[0], [0]]


def test_a_damaged_line_is_named_by_its_number(monkeypatch, capsys):
    wrong = '{"episodes": [{"steps": [{"state": "S", "reward": NaN}]}]}'
    spread = wrong.replace(": [{", ": [\n\n{")
    for text, match in [
        (group(EX2) + '\n\n{"episodes": []}', "input line 3: episodes: "), (group(EX2) + "\n{", "input line 2: "),
        (f"{wrong}\n{group(EX2)}", r"input line 1: JSON is malformed: NaN is no number \(byte 50\)"),
        (f"\n{spread}", r"input line 6: JSON is malformed: NaN is no number \(byte 25\)"),
    ]:
        with pytest.raises(UserError, match=match):
            run(monkeypatch, capsys, text)


@pytest.mark.parametrize(("line", "source"), [
    ({"input": "user\nhi", "output": "ok", "gts": None, "score": 1.0, "step": 3}, "verl"),
    ({"uid": "g", "traj_uid": "a", "turn": 0, "input": "hi", "output": "ok", "rewards": 1.0}, "verl"),
    ({"task": "t", "steps": [{"state": "hi", "reward": 1.0}]}, "agents")])
def test_a_log_of_another_form_is_told_by_the_option_that_reads_it(monkeypatch, capsys, line, source):
    with pytest.raises(UserError, match=f"input line 1: Object contains unknown field `.*`; give --from {source}$"):
        run(monkeypatch, capsys, json.dumps(line))


def test_a_group_may_be_spread_over_lines(monkeypatch, capsys):
    spread = json.dumps(json.loads(group(EX2)), indent=1)
    assert run(monkeypatch, capsys, spread) == run(monkeypatch, capsys, group(EX2))
