"""The experiment's numbers, by hand."""

from dataclasses import replace

import pytest

from deploy.report.tables import (
    differences,
    differences_grid,
    last_evaluations,
    means,
    means_grid,
    measures,
    volatility,
)
from lab.experiments.credit.experiment import as_lines, parts_of, planned


def test_volatility_is_the_spread_of_changes_over_the_mean():
    """1, 3, 2, 4: changes 2, -1, 2 with spread sqrt(3), mean 2.5."""
    assert volatility([1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.692820, abs=1e-6)
    assert volatility([1.0, None, 1.0]) is None


def test_each_measure_gives_one_value_for_a_run(record):
    run = record("gagpo", 0, 0.5)
    values = {measure.name: measure.of(run) for measure in measures([run])}
    assert values == pytest.approx({
        "heldout": 0.5, "step_2": 0.25, "area": 0.5, "length": 10.0, "inadmissible": 0.3, "volatility": 0.692820,
        "iqr": 0.75, "tail": 0.2, "singletons": 0.3, "minutes": 3.0}, abs=1e-6)


def test_the_last_three_evaluations_are_averaged(record):
    run = record("gagpo", 0, 0.5)
    rows = [{"label": f"step-{step}", "step": step, "split": "heldout", "temperature": 1.0, "success_rate": rate}
            for step, rate in ((12, 0.6), (3, 0.0), (18, 0.3), (6, 0.3))]
    run = replace(run, evaluations=[*rows, run.evaluations[-1]])
    (last,) = [measure for measure in measures([run]) if measure.name == "last"]
    assert last.of(run) == pytest.approx(0.4)


def test_the_heldout_games_of_a_shorter_run_are_not_those_of_the_longer_one(record):
    run = record("gagpo", 0, 0.5)
    further = {"label": "step-000099", "step": 99, "split": "heldout", "temperature": 1.0, "success_rate": 0.1}
    (heldout,) = [measure for measure in measures([run]) if measure.name == "heldout"]
    assert (heldout.of(run), heldout.of(replace(run, evaluations=[*run.evaluations, further]))) == (0.5, None)


def test_the_cold_start_is_none_of_the_last_evaluations(record):
    rows = [{"label": f"step-{step}", "step": step, "split": "heldout", "temperature": 1.0, "success_rate": 0.5}
            for step in (0, 10, 20)]
    run = replace(record("gagpo", 0, 0.5), evaluations=rows)
    assert last_evaluations(run) is None
    assert "last" not in {measure.name for measure in measures([run])}


def test_evaluations_of_other_splits_and_temperatures_are_columns_of_their_own(record):
    """One arm plays validation games at T = 1, the other held-out games at T = 0.4."""
    def run(arm: str, split: str, temperature: float, rate: float):
        rows = [{"label": label, "step": step, "split": split, "temperature": temperature, "success_rate": rate}
                for label, step in (("step-2", 2), ("step-4", 4), ("step-6", 6), ("panel-trained", 6))]
        return replace(record(arm, 0, 0.5), evaluations=rows)

    runs = [run("gagpo", "valid", 1.0, 0.2), run("gigpo", "heldout", 0.4, 0.6)]
    names = {measure.name: measure.title for measure in measures(runs) if measure.form == ".1%"}
    assert names["heldout"] == "held-out (valid, T=1)"
    assert names["step_2"] == "at 2 (heldout, T=0.4)"
    assert names["step_2_valid_T1"] == "at 2 (valid, T=1)"
    values = {arm: {name: cell.mean for name, cell in cells.items() if name.startswith(("heldout", "last", "step_2"))}
              for arm, cells in means(runs, planned(runs)).items()}
    assert values == {
        "gagpo": pytest.approx({"heldout": 0.2, "last_valid_T1": 0.2, "step_2_valid_T1": 0.2}),
        "gigpo": pytest.approx({"heldout_T0.4": 0.6, "last": 0.6, "step_2": 0.6})}


def test_means_are_over_seeds(three_seeds):
    cell = means(three_seeds, planned(three_seeds))["gagpo"]["heldout"]
    assert (cell.mean, cell.n) == (pytest.approx(0.6), 3)
    assert cell.high - cell.mean == pytest.approx(0.248414, abs=1e-5)


def test_a_mean_of_fewer_seeds_than_its_line_says_how_many(three_seeds):
    """A run that goes on has no held-out games yet, and the line claimed its seed for them."""
    *done, going_on = three_seeds
    runs = [*done, replace(going_on, evaluations=[])]
    grid = means_grid(runs, planned(runs))
    at = grid.head.index("held-out")
    assert [(row[1], row[at].partition(" (")[2]) for row in grid.rows] == [("3", ""), ("3", "n=2)")]
    (pair,) = differences_grid(runs, planned(runs)).rows
    assert (pair[1], pair[2].endswith("(n=2)")) == ("3", True)


def test_differences_are_paired_by_seed(three_seeds):
    """.1, 0 and .2: mean .1, spread .1."""
    cell = differences(three_seeds, planned(three_seeds))["gagpo", "gigpo"]["heldout"]
    assert (cell.mean, cell.n) == (pytest.approx(0.1), 3)
    assert cell.high - cell.mean == pytest.approx(0.248414, abs=1e-5)
    assert cell.detectable == pytest.approx(0.309652, abs=1e-5)


def test_only_common_seeds_are_paired(three_seeds, record):
    more = [*three_seeds, record("gagpo", 3, 0.9), record("gigpo", 4, 0.1), record("gagpo_loo", 0, 0.5)]
    found = differences(more, planned(more))
    assert found["gagpo", "gigpo"]["heldout"].n == 3
    assert ("gagpo_loo", "gagpo") not in found


def test_fresh_seeds_are_never_pooled_with_those_that_chose(three_seeds, record):
    parts = parts_of([*three_seeds, record("gagpo", 100, 0.0)])
    assert {title: len(part) for title, part in parts.items()} == {"First seeds": 6, "Fresh seeds": 1}


def test_missing_numbers_of_an_arm_leave_empty_cells(record):
    """A curve without a finite value, and a run without the key at all."""
    runs = [record("ppo", 0, 0.5, **{"credit/advantage_iqr": [None] * 4})]
    found = means(runs, planned(runs))
    assert "iqr" not in found["ppo"]
    assert found["ppo"]["tail"].mean == pytest.approx(0.2)


def test_the_table_reads_as_text(three_seeds, record):
    cold = {"success_rate": 0.25, "tasks": 256}
    lines = as_lines([*three_seeds, record("ppo", 0, 0.4)], cold)
    assert any(line.startswith("| GAGPO ") and "60.0% ±24.8" in line for line in lines)
    assert any(line.startswith("| GAGPO - GiGPO ") and "+10.0 ±24.8 " in line and " 31.0 " in line for line in lines)
    assert any(line.startswith("| PPO ") and "| 40.0% " in line for line in lines)
    assert lines[-1] == "The cold start wins 25.0% of the 256 held-out games."
    widths = {len(line) for line in lines if line.startswith("| GAGPO ") or line.startswith("| PPO ")}
    assert len(widths) == 2, "the columns of each grid are aligned"


def test_a_table_says_which_arms_lack_seeds_that_others_have(three_seeds, record):
    """Means over other seeds differ also where the arms do not. Arms without any run are in no table."""
    runs = [*three_seeds, record("ppo", 1, 0.4), record("rloo", 0, 0.4), record("rloo", 2, 0.4)]
    told = "Not every arm has all seeds: RLOO lacks 1; PPO lacks 0, 2."
    assert means_grid(runs, planned(runs)).note.endswith(told)
    assert told in "\n".join(as_lines(runs))
    assert "lacks" not in means_grid(three_seeds, planned(three_seeds)).note


def test_a_clear_difference_is_marked(record):
    runs = [record(arm, seed, value + seed / 1000) for seed in range(4)
            for arm, value in (("gagpo", 0.6 + seed / 500), ("gigpo", 0.4))]
    assert any("*" in line for line in as_lines(runs) if line.startswith("| GAGPO - GiGPO"))


def test_equal_differences_have_no_interval_and_no_mark(record):
    """Held-out success is 10 points apart at both seeds, so nobody knows how it is at others."""
    runs = [record(arm, seed, value + seed / 4) for seed in range(2) for arm, value in (("gagpo", 0.6), ("gigpo", 0.5))]
    (line,) = [line for line in as_lines(runs) if line.startswith("| GAGPO - GiGPO")]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[3] == "+10.0"
    assert cells[-2] == "∞"
