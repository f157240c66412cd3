import argparse
import io
import json

import pytest

from deploy import command_credit
from services.errors import UserError

EX2 = [[("S", 0), ("U", 0), ("M", 10)], [("S", 0), ("W", 0), ("M", 0), ("E", 0)]]


def run(monkeypatch, capsys, text, *arguments):
    parser = argparse.ArgumentParser()
    command_credit.add_parser(parser.add_subparsers())
    args = parser.parse_args(["credit", *arguments])
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert args.run(args) == 0
    return capsys.readouterr().out


def group(episodes):
    return json.dumps({"episodes": [{"steps": [{"state": s, "reward": r, "invalid": False} for s, r in episode]}
                                    for episode in episodes]})


def test_json_has_the_fixed_form(monkeypatch, capsys):
    out = json.loads(run(monkeypatch, capsys, group(EX2)))
    assert set(out) == {"returns", "values", "deltas", "raw_advantages", "advantages"}
    assert out["values"]["M"] == [5.0, 2]
    assert out["advantages"][0] == pytest.approx([1.0346, -0.2593, 1.3647], abs=5e-5)
    assert [len(row) for row in out["deltas"]] == [3, 4]


def test_options_reach_the_estimator(monkeypatch, capsys):
    out = json.loads(run(monkeypatch, capsys, group(EX2), "--gamma", "0.5", "--lam", "0", "--normalize", "none"))
    assert out["advantages"] == out["raw_advantages"] == out["deltas"]
    assert out["returns"][0] == [2.5, 5, 10]


def test_a_file_and_the_table(monkeypatch, capsys, tmp_path):
    path = tmp_path / "group.json"
    path.write_text(group(EX2))
    lines = run(monkeypatch, capsys, "", str(path), "--table").splitlines()
    assert lines[0].split() == ["episode", "step", "state", "return", "value", "count", "delta", "raw", "advantage"]
    assert len(lines) == 8
    assert lines[1].split()[-1] == "1.0346"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"episodes": []}', "episodes"),
        ('{"episodes": [{"steps": []}]}', r"episodes\.0\.steps"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": NaN}]}]}', r"episodes\.0\.steps\.0\.reward"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": "1"}]}]}', r"episodes\.0\.steps\.0\.reward"),
        ('{"episodes": [{"steps": [{"state": 1, "reward": 1}]}]}', r"episodes\.0\.steps\.0\.state"),
        ('{"episodes": [{"steps": [{"state": "S"}]}]}', r"episodes\.0\.steps\.0\.reward"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1, "invalid": 1}]}]}', r"steps\.0\.invalid"),
        ('{"episodes": [{"steps": [{"state": "S", "reward": 1, "rewrad": 1}]}]}', r"steps\.0\.rewrad"),
        ("{", "input"),
        ("", "input"),
    ],
)
def test_bad_input_names_the_field_in_one_line(monkeypatch, capsys, text, field):
    with pytest.raises(UserError, match=field) as caught:
        run(monkeypatch, capsys, text)
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_one_line(monkeypatch, capsys, tmp_path):
    for arguments, match in [
        (["--estimator", "gagp"], "use one of: gagpo"),
        (["--gamma", "1.5"], "--gamma"),
        (["--gamma", "nan"], "--gamma"),
        ([str(tmp_path / "none.json")], "cannot read"),
    ]:
        with pytest.raises(UserError, match=match) as caught:
            run(monkeypatch, capsys, group(EX2), *arguments)
        assert "\n" not in str(caught.value)
