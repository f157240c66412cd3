"""The sums under a step are true: worked out from their text alone, they give the archive's numbers."""

import re

import pytest
from explorer_run import make_run

from deploy.explorer.formulas import sums
from deploy.explorer.runs import open_runs

ALL = "V̄ δ Â A"
HOLDING = {
    "gagpo": ({}, ALL), "ddof": ({"ddof": 0, "penalty": 0.3}, ALL), "raw": ({"normalize": "none"}, ALL),
    "prompt": ({"state_key": "prompt", "gamma": 1.0, "lam": 0.0}, ALL),
    "loo": ({"estimator": "gagpo_loo", "prior": 1.0}, "δ Â A"), "boot": ({"estimator": "gagpo_boot"}, "δ Â A"),
    "batch": ({"normalize": "batch"}, "V̄ δ Â"), "broadcast": ({"broadcast": 0.5}, "V̄ δ Â"),
    "grpo": ({"estimator": "grpo"}, ""), "gigpo": ({"estimator": "gigpo"}, "")}
"""Credit options, and the numbers that the page works out for every step."""


@pytest.mark.parametrize("name", HOLDING)
def test_a_line_worked_out_gives_the_number_of_the_archive(name, tmp_path):
    options, always = HOLDING[name]
    run, = open_runs([make_run(tmp_path / name, **options)])
    for entry in (entry for entry in run.groups() if entry.outcome == "trained"):
        group = run.group(entry.file, entry.group)
        for episode in group.episodes:
            for step, lines in zip(episode.steps, sums(group, episode, run.credit), strict=True):
                said = {line.split(" ")[0]: line for line in lines}
                assert set(always.split()) <= set(said)
                archived = {"V̄": step.value, "δ": step.delta, "Â": step.raw, "A": step.advantage}
                for symbol, line in said.items():
                    *_, sum_, result = line.replace("−", "-").replace("·", "*").split(" = ")
                    assert float(result) == pytest.approx(archived[symbol], abs=6e-4)
                    if re.fullmatch(r"[-+*/().\d ]+", sum_):
                        assert eval(sum_) == pytest.approx(archived[symbol], rel=0.03, abs=5e-3)


def test_a_number_that_follows_another_formula_has_no_line(tmp_path):
    """With the penalty as a reward, V̄ and Â are as said, and δ of an invalid step is not r + γ V̄ - V̄."""
    run, = open_runs([make_run(tmp_path / "reward", penalty_mode="reward", penalty=0.5)])
    entry = next(entry for entry in run.groups() if entry.outcome == "trained" and entry.invalid)
    group = run.group(entry.file, entry.group)
    for episode in group.episodes:
        for step, lines in zip(episode.steps, sums(group, episode, run.credit), strict=True):
            assert any(line.startswith("δ") for line in lines) == step.valid


def test_an_episode_that_was_not_trained_on_has_none(run_folder):
    run, = open_runs([run_folder])
    entry = next(entry for entry in run.groups() if entry.outcome == "evaluated")
    group = run.group(entry.file, entry.group)
    assert sums(group, group.episodes[0], run.credit) == [[] for _ in group.episodes[0].steps]
