"""`gagpo experiment`: options that an experiment would ignore are refused before it does anything."""

from pathlib import Path

import pytest

from deploy.cli import main
from deploy.commands.experiment import EXPERIMENTS, READS


@pytest.mark.parametrize(("arguments", "option"), [
    (["loglinear", "--dry-run"], "--dry-run does nothing in the experiment loglinear"),
    (["tabular", "--arms", "gagpo"], "--arms does nothing in the experiment tabular"),
    (["gradient", "--report"], "--report does nothing in the experiment gradient"),
    (["credit", "--runs", "runs/mine"], "--runs does nothing in the experiment credit"),
    (["loglinear", "learner.lr=1"], "KEY=VALUE does nothing in the experiment loglinear")])
def test_an_option_that_does_nothing_is_refused(
        arguments: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["experiment", *arguments[:1], "--out", str(tmp_path / "out"), *arguments[1:]]) == 2
    assert option in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_each_experiment_says_what_it_reads():
    assert READS.keys() == EXPERIMENTS.keys()
