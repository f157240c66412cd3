"""`python -m lab.experiments` refuses mistakes before it starts anything, and makes tables from records alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.experiments.__main__ import main
from lab.experiments.credit import records
from lab.experiments.credit.design import chosen


@pytest.fixture
def results(tmp_path: Path, three_seeds, record) -> Path:
    for one in [*three_seeds, record("gagpo", 100, 0.6), record("gigpo", 100, 0.5)]:
        records.write(tmp_path / f"{one.arm}-seed{one.seed}.json", one)
    return tmp_path


def test_a_locale_without_utf_8_can_write_the_table(results: Path):
    done = subprocess.run(
        [sys.executable, "-m", "lab.experiments", "credit", "--report", "--json", "--out", str(results)],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, capture_output=True,
        timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "±" in (results / "table.md").read_text(encoding="utf-8")


def test_generated_games_are_refused(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert main(["credit", "--out", str(tmp_path)]) == 2
    assert "error: the experiment needs the official games" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "what"), [
    (["--arms", "gagpo,nobody"], "there is no arm 'nobody'"),
    (["--arms", "gagpo,rlvmr"], "env.prompt=compact asks for none"),
    (["--confirm"], "no winner to confirm"), (["--report"], "holds no finished run"),
    (["sft.enabled=false"], "the runs share a cold start"), (["eval.panel=0"], "judges by the held-out games"),
    (["learner.lr=-1"], "learner.lr cannot be -1"),
    (["--parallel", "2", "metrics.port=8100", "--dry-run"], "metrics.port=8100 is for one run at a time")])
def test_mistakes_are_one_line(tmp_path: Path, capsys, monkeypatch, arguments: list[str], what: str):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert main(["credit", "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert error.count("\n") == 1


def test_one_run_at_a_time_may_have_a_port_of_its_own(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert main(["credit", "--out", str(tmp_path / "out"), "--seeds", "1", "--arms", "gagpo",
                 "--dry-run", "metrics.port=8100"]) == 0
    assert capsys.readouterr().out.split() == ["gagpo-seed0"]


def test_a_dry_run_lists_the_runs_in_their_order(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert main(["credit", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    listed = capsys.readouterr().out.split()
    assert listed[: len(chosen(None))] == [f"{arm}-seed0" for arm in chosen(None)]
    assert listed[-1] == "gigpo-seed9"
    assert not (tmp_path / "out").exists()


def test_the_winner_of_the_first_seeds_is_confirmed_on_fresh_ones(results: Path, capsys, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(results))
    assert main(["credit", "--out", str(results), "--confirm", "--seeds", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.split() == ["gagpo-seed100", "gigpo-seed100"]


def test_a_report_needs_the_records_alone(results: Path, capsys, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert main(["credit", "--out", str(results), "--report"]) == 0
    said = capsys.readouterr().out
    assert said.strip() == (results / "table.md").read_text().strip()
    assert "## First seeds" in said
    assert "## Fresh seeds" in said
    for part in ("first-seeds", "fresh-seeds"):
        figures = {path.name: path.stat().st_size for path in (results / "figures" / part).iterdir()}
        assert figures.keys() == {"success.png", "length.png", "gradient-entropy.png", "advantages.png", "heldout.png"}
        assert max(figures.values()) < 60_000


def test_the_summary_is_plain_json(results: Path, capsys):
    """A single pair says nothing of the spread: its interval is null, never Infinity."""
    assert main(["credit", "--out", str(results), "--report", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (pair,) = summary["parts"]["First seeds"]["differences"]
    assert (pair["a"], pair["b"], pair["heldout"]["n"]) == ("gagpo", "gigpo", 3)
    assert pair["heldout"]["mean"] == pytest.approx(0.1)
    assert summary["parts"]["Fresh seeds"]["arms"]["gagpo"]["heldout"]["high"] is None
