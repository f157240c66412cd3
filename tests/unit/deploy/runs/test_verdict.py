"""The verdict on a run by hand-worked numbers."""

from pathlib import Path
from typing import Any

import pytest

from deploy.runs.comparison import interval, next_commands, points, stand_in_notes, verdicts
from services.telemetry.evaluations import COLD, MORE, TRAINED


def row(label: str, wins: str, *, step: int = 0, temperature: float = 1.0) -> dict[str, Any]:
    """Returns an evaluation whose game i was won if `wins[i]` is 1."""
    by_task = {f"alfworld-gen/valid/look-{i}": float(won) for i, won in enumerate(wins)}
    mean = sum(by_task.values()) / len(by_task)
    return {"label": label, "step": step, "temperature": temperature, "split": "valid_seen",
            "tasks": len(by_task), "success_rate": mean,
            "success_low": 0.0, "success_high": 1.0, "success_by_task": by_task}


def test_the_heldout_games_decide_and_more_cold_start_stands_beside() -> None:
    """Ten of forty games are won before, thirty after: the gain is 20/40, its sample sd .5064, its half-width .157."""
    rows = [row("step-000000", "0"), row(COLD, "1" * 10 + "0" * 30), row(TRAINED, "1" * 30 + "0" * 10, step=9),
            row(MORE, "1" * 15 + "0" * 25, step=9)]
    (found,) = verdicts(rows)
    assert found.text == "25% -> 75% at T=1, +50 points [34, 66]; more cold start 38% (40 held-out games, one seed)"


def test_a_narrow_interval_has_a_decimal_so_that_its_side_of_zero_is_seen() -> None:
    """961 and 966 of 978 games, of which 5 changed: 5/978 points, sample sd .0714, half-width .0045."""
    rows = [row(COLD, "1" * 961 + "0" * 17), row(TRAINED, "1" * 966 + "0" * 12), row(MORE, "1" * 970 + "0" * 8)]
    (found,) = verdicts(rows)
    assert found.text == (
        "98.3% -> 98.8% at T=1, +0.5 points [0.1, 1.0]; more cold start 99.2% (978 held-out games, one seed)")


def test_whole_points_that_disagree_have_a_decimal() -> None:
    """95 and 96 of 183 games, which read 52% -> 52%, +1 points."""
    before, after = "1" * 95 + "0" * 88, "0" * 20 + "1" * 96 + "0" * 67
    (found,) = verdicts([row(COLD, before), row(TRAINED, after)])
    assert found.text.startswith("51.9% -> 52.5% at T=1, +0.5 points [")


def test_generated_games_are_not_taken_for_the_official_ones() -> None:
    rows = [row(label, wins) | {"env": "alfworld-gen"} for label, wins in (
        ("step-000000", "01"), ("step-000003", "11"), (COLD, "00"), (TRAINED, "11"))]
    rows[1]["step"] = rows[-1]["step"] = 3
    (found,) = verdicts(rows)
    assert found.text.endswith(" (2 held-out games of alfworld-gen, not of alfworld, one seed)")
    (found,) = verdicts(rows[:2])
    assert found.text.endswith(
        " (2 games of the split valid_seen of alfworld-gen, not of alfworld, learner step 0 to 3, one seed)")
    assert stand_in_notes(rows) == ["played on alfworld-gen: these results are not results on alfworld"]
    assert stand_in_notes([row(COLD, "1"), row(TRAINED, "1") | {"env": "alfworld"}]) == []


def test_each_temperature_has_a_verdict_in_the_order_of_play() -> None:
    rows = [row(label, wins, temperature=t) for label, wins in ((COLD, "00"), (TRAINED, "11")) for t in (1.0, 0.4)]
    assert [one.temperature for one in verdicts(rows)] == [1.0, 0.4]


def test_a_gain_whose_interval_holds_zero_shows_no_difference() -> None:
    (found,) = verdicts([row(COLD, "0100"), row(TRAINED, "1100")])
    assert found.text == "25% -> 50% at T=1, +25 points [-55, 100], no difference shown (4 held-out games, one seed)"


def test_before_the_heldout_games_the_curve_stands_in() -> None:
    rows = [row("step-000000", "0000", temperature=0.4), row("step-000002", "0001", step=2, temperature=0.4),
            row(COLD, "0011"), row("step-000004", "1111", step=4, temperature=0.4)]
    (found,) = verdicts(rows)
    assert found.text == ("0% -> 100% at T=0.4, +100 points [-20, 100], no difference shown "
                          "(4 games of the split valid_seen, learner step 0 to 4, one seed)")


def test_of_a_run_that_goes_on_with_more_steps_the_heldout_games_of_before_do_not_count() -> None:
    """The policy that played them is not the present one; it plays them at the end."""
    rows = [row("step-000000", "0000", temperature=0.4), row(COLD, "0011"), row(TRAINED, "1111", step=4),
            row(MORE, "1111", step=4), row("step-000009", "0001", step=9, temperature=0.4)]
    (found,) = verdicts(rows)
    assert found.text.endswith("(4 games of the split valid_seen, learner step 0 to 9, one seed)")
    (again,) = verdicts([*rows, row(TRAINED, "0111", step=9)])
    assert again.text.startswith("50% -> 75% at T=1")
    assert again.more is None


@pytest.mark.parametrize("rows", [[], [row("step-000000", "01")], [row(COLD, "01")]])
def test_without_evaluations_to_compare_there_are_no_verdicts(rows: list[dict[str, Any]]) -> None:
    assert verdicts(rows) == []


def test_gains_are_in_points() -> None:
    assert (points(0.1949), points(-0.04), points(0.001)) == ("+19", "-4", "0")
    assert interval(-0.051, 0.26) == "[-5, 26]"
    assert (points(0.0049, 1), points(0.0001, 1)) == ("+0.5", "0")
    assert (interval(-0.002, 0.012, 1), interval(-0.001, 0.26)) == ("[-0.2, 1.2]", "[0, 26]")


def test_a_long_command_does_not_move_the_notes_of_the_others() -> None:
    short, *_, long = next_commands(Path("runs/a"), [row("step-000000", "01") | {"success_by_task": {"a" * 90: 1.0}}])
    assert short.index("  #") < 40
    assert long.endswith("--agent runs/a  # watch it play")
    assert len(next_commands(Path("runs") / ("a" * 90), [])) == 4


def test_the_next_commands_can_be_copied() -> None:
    commands = next_commands(Path("my runs/mine"), [row("step-000000", "01")])
    assert [command.partition("  #")[0].rstrip() for command in commands] == [
        "gagpo explore 'my runs/mine'", "gagpo report 'my runs/mine'", "gagpo eval 'my runs/mine'",
        "gagpo export 'my runs/mine' mine-model", "gagpo play alfworld-gen/valid/look-0 --agent 'my runs/mine'"]
    assert not any("play" in command for command in next_commands(Path("runs/a"), []))


def test_in_the_runs_own_folder_an_export_has_the_name_of_the_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert next_commands(Path(), [])[3].startswith("gagpo export . mine-model ")
