"""`python -m lab.experiments`: options that an experiment would ignore are refused before it does anything."""

from pathlib import Path

import pytest

from lab.experiments.__main__ import EXPERIMENTS, READS, main


@pytest.mark.parametrize(("arguments", "option"), [
    (["loglinear", "--dry-run"], "--dry-run does nothing in the experiment loglinear"),
    (["tabular", "--arms", "gagpo"], "--arms does nothing in the experiment tabular"),
    (["gradient", "--report"], "--report does nothing in the experiment gradient"),
    (["credit", "--runs", "runs/mine"], "--runs does nothing in the experiment credit"),
    (["loglinear", "learner.lr=1"], "KEY=VALUE does nothing in the experiment loglinear"),
    *[(["credit", "--report", *ignored], f"{ignored[0]} does nothing with --report")
      for ignored in (["--arms", "gagpo"], ["--seeds", "3"], ["--confirm"], ["--hours", "1"], ["--parallel", "2"],
                      ["--config", "mine.yaml"], ["--dry-run"])],
    (["credit", "--report", "learner.lr=1"], "KEY=VALUE does nothing with --report"),
    (["loglinear", "--report", "--arms", "gagpo"], "--arms does nothing with --report"),
    (["tabular", "--report", "--seeds", "3"], "--seeds does nothing with --report")])
def test_an_option_that_does_nothing_is_refused(
        arguments: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*arguments[:1], "--out", str(tmp_path / "out"), *arguments[1:]]) == 2
    error = capsys.readouterr().err
    assert option in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_each_experiment_says_what_it_reads():
    assert READS.keys() == EXPERIMENTS.keys()
