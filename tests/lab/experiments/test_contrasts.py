"""The planned tests of the transformer's comparison, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.experiments.__main__ import main
from lab.experiments.contrasts import KEYS, TERMS, between_arms, between_starts, contrasts_grid, paired, shown_p
from lab.experiments.credit import records

SEEDS = (100, 101, 102)


@pytest.fixture
def evaluated(record):
    """Provides `evaluated(arm, seed, rate)`: a record whose last three evaluations have a mean of `rate`."""
    def make(arm: str, seed: int, rate: float):
        rows = [{"label": f"step-{step}", "step": step, "split": "heldout", "success_rate": rate + offset}
                for step, offset in ((6, -0.1), (12, 0.0), (18, 0.1))]
        final = {"label": "panel-trained", "step": 18, "split": "heldout", "success_rate": 0.5}
        return replace(record(arm, seed, 0.5), evaluations=[*rows, final])

    return make


@pytest.fixture
def three_pairs(evaluated):
    """Provides GAGPO less GiGPO of 1, 2 and 3 points: t = 2 sqrt(3), p = 0.0742 at two degrees of freedom."""
    return [evaluated(arm, seed, rate) for n, seed in enumerate(SEEDS)
            for arm, rate in (("gagpo", 0.51 + n / 100), ("gigpo", 0.5))]


def test_differences_are_those_of_fresh_seeds_that_both_arms_have(three_pairs, evaluated):
    more = [*three_pairs, evaluated("gagpo", 0, 0.9), evaluated("gigpo", 0, 0.1), evaluated("gagpo", 103, 0.9)]
    assert paired(more, ("gagpo", "gigpo")) == pytest.approx([1.0, 2.0, 3.0])


def test_a_start_without_runs_still_counts_in_the_correction(three_pairs):
    (one,) = between_starts({"weak": three_pairs})
    assert (one.name, one.pairs, one.mean) == ("weak", 3, pytest.approx(2.0))
    assert (one.p, one.corrected) == (pytest.approx(0.07418, abs=1e-5), pytest.approx(3 * 0.07418, abs=1e-5))


def test_the_smallest_p_counts_as_often_as_starts_were_planned(three_pairs, evaluated):
    """The plateaued start: 10, 20 and 33 points, so t = 21 / (11.53 / sqrt(3)) = 3.154 and p = 0.0875."""
    other = [evaluated(arm, seed, rate) for n, seed in enumerate(SEEDS)
             for arm, rate in (("gagpo", 0.5 + (0.1, 0.2, 0.33)[n]), ("gigpo", 0.5))]
    weak, plateaued = between_starts({"weak": three_pairs, "plateaued": other})
    assert plateaued.p == pytest.approx(0.0875, abs=1e-4)
    assert weak.corrected == plateaued.corrected == pytest.approx(3 * 0.07418, abs=1e-5)


@pytest.mark.parametrize("family", [KEYS, TERMS])
def test_contrasts_of_arms_are_corrected_over_all_that_were_planned(evaluated, family):
    (a, b), *_ = family
    runs = [evaluated(arm, seed, rate) for n, seed in enumerate(SEEDS)
            for arm, rate in ((a, 0.51 + n / 100), (b, 0.5))]
    (one,) = between_arms(runs, family)
    assert (one.mean, one.corrected) == (pytest.approx(2.0), pytest.approx(len(family) * one.p))


@pytest.fixture
def equal_pairs(evaluated):
    """Provides GAGPO less GiGPO of 25 points at each of three seeds."""
    return [evaluated(arm, seed, rate) for seed in SEEDS for arm, rate in (("gagpo", 0.75), ("gigpo", 0.5))]


def test_equal_differences_are_shown_without_an_interval(equal_pairs):
    grid = contrasts_grid(between_starts({"weak": equal_pairs}), what="start", planned=3)
    assert grid.rows == [["weak", "3", "+25.0", "1", "1"]]


def test_an_interval_without_an_end_is_null_for_machines(tmp_path: Path, equal_pairs, capsys):
    (tmp_path / "weak").mkdir()
    for one in equal_pairs:
        records.write(tmp_path / "weak" / f"{one.arm}-seed{one.seed}.json", one)
    assert main(["credit", "--out", str(tmp_path), "--report", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (one["mean"], one["low"], one["high"], one["p"]) == (25.0, None, None, 1.0)


def test_runs_with_fewer_than_three_evaluations_have_no_primary_outcome(three_seeds):
    assert between_starts({"weak": three_seeds}) == []


def test_a_p_value_below_what_the_test_can_tell_is_never_shown_as_zero():
    assert [shown_p(value) for value in (0.0, 2e-16, 0.00099, 0.001, 0.0742, 1.0)] == [
        "<0.001", "<0.001", "<0.001", "0.001", "0.074", "1"]


def test_the_report_of_the_folder_above_the_starts_tests_the_question(tmp_path: Path, three_pairs, capsys):
    (tmp_path / "weak").mkdir()
    for one in three_pairs:
        records.write(tmp_path / "weak" / f"{one.arm}-seed{one.seed}.json", one)
    assert main(["credit", "--out", str(tmp_path), "--report"]) == 0
    said = capsys.readouterr().out
    assert said.strip() == (tmp_path / "table.md").read_text().strip()
    assert "| weak" in said
    assert "+2.0 ±2.5" in said
    assert "0.22" in said
    assert main(["credit", "--out", str(tmp_path), "--report", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["weak"]
