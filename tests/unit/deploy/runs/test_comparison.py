"""The before/after table by hand-worked numbers."""

from typing import Any

import pytest

from deploy.runs.comparison import as_lines, compare, heldout, repeats, rule_scores
from services.telemetry.evaluations import COLD, TRAINED


def line(label: str, wins: dict[str, float]) -> dict[str, Any]:
    mean = sum(wins.values()) / len(wins)
    return {"label": label, "step": 5, "temperature": 1.0, "tasks": len(wins), "success_rate": mean,
            "success_low": mean, "success_high": mean, "success_by_task": wins}


def test_without_final_evaluations_there_is_no_comparison() -> None:
    assert compare([line("step-000005", {"a": 1.0})]) is None


def test_the_gain_is_paired_by_game() -> None:
    """Games gain 1, 0, 0, 0: mean .25, sample sd .5, standard error .25, half-width 3.1824 · .25 = .7956."""
    before, after = {"a": 0, "b": 1, "c": 0, "d": 1}, {"a": 1, "b": 1, "c": 0, "d": 1}
    comparison = compare([line(COLD, before), line(TRAINED, after)])
    assert comparison is not None
    (gain,) = comparison.gains
    assert gain.gain == 0.25
    assert gain.low == pytest.approx(0.25 - 0.795612, abs=1e-4)
    assert as_lines(comparison, env="alfworld-gen")[-1].endswith(
        "+25.0   [ -54.6, +100.0]  points, paired by game: no difference shown")


@pytest.mark.parametrize(("before", "after", "count", "verdict"), [
    (0.0, 1.0, 20, "better (one seed)"), (1.0, 0.0, 20, "worse (one seed)"), (0.0, 1.0, 1, "no difference shown"),
    (1.0, 0.0, 3, "no difference shown")])
def test_a_steady_difference_over_enough_games_is_told_either_way(
        before: float, after: float, count: int, verdict: str) -> None:
    games = [str(i) for i in range(count)]
    comparison = compare([line(COLD, dict.fromkeys(games, before)), line(TRAINED, dict.fromkeys(games, after))])
    assert comparison is not None
    assert as_lines(comparison, env="alfworld-gen")[-1].endswith(f"paired by game: {verdict}")


def test_repeated_games_have_the_best_of_k_below_their_row() -> None:
    best = {"pass_at": {"2": 0.5}, "pass_at_low": {"2": 0.25}, "pass_at_high": {"2": 0.75},
            "best_score": {"2": 7}, "best_score_low": {"2": 6}, "best_score_high": {"2": 8.25}}
    comparison = compare([line(COLD, {"a": 0.5}) | best, line(TRAINED, {"a": 0.5})])
    assert comparison is not None
    _, cold, *of_two, trained, _ = as_lines(comparison, env="alfworld-gen")
    assert of_two == ["    pass@2 50.0% [25.0%, 75.0%]", "    best score of 2 7 [6, 8.25]"]
    assert "T=1" in cold
    assert "T=1" in trained
    assert repeats({"pass_at": {"2": 0.5}}) == (), "a line that lacks its interval"


def test_the_scores_by_several_rules_are_below_their_row() -> None:
    rules = {"score_by_rule": {"original": 0.625, "strict": 0.5},
             "full_score_by_rule": {"original": 0.5, "strict": 0.25}}
    comparison = compare([line(COLD, {"a": 0.5}) | rules, line(TRAINED, {"a": 0.5})])
    assert comparison is not None
    _, _, *by_rule, _, _ = as_lines(comparison, env="webshop")
    assert by_rule == ["    original: score 0.625, full score 50.0%", "    strict: score 0.5, full score 25.0%"]
    assert rule_scores({"score_by_rule": {"strict": 0.5}}) == (), "a line that lacks its full scores"


def test_a_game_that_a_fault_took_from_one_side_is_left_out() -> None:
    comparison = compare([line(COLD, {"a": 0.0, "b": 0.0}), line(TRAINED, {"a": 1.0})])
    assert comparison is not None
    assert comparison.gains[0].gain == 1.0


def test_a_shorter_runs_result_does_not_count_even_if_the_run_has_no_curve() -> None:
    """With eval.every=0. The run went on from step 5 to 10, and first played at one of its two temperatures."""
    games = {"a": 0.0, "b": 1.0}
    rows = [line(COLD, games), line(TRAINED, games), line(TRAINED, games) | {"temperature": 0.4},
            line(TRAINED, games) | {"step": 10}]
    assert [(row["label"], row["step"], row["temperature"]) for row in heldout(rows)] == [
        (COLD, 5, 1.0), (TRAINED, 10, 1.0)]


def test_where_faults_left_no_game_on_both_sides_there_is_no_gain() -> None:
    comparison = compare([line(COLD, {"a": 0.0}), line(TRAINED, {"b": 1.0})])
    assert comparison is not None
    assert (len(comparison.rows), comparison.gains) == (2, ())
