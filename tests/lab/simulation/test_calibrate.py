"""The times of a run's parts, from files whose waits follow the formula exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.runs.folder import RunFolder
from lab.simulation.__main__ import main
from lab.simulation.calibrate import REDIS_TURN, calibrate, two_times
from lab.simulation.forecast import forecast
from services.config.file import dump_config
from services.config.tree import Config
from services.errors import UserError
from services.telemetry.metrics_file import append_row

LENGTHS = {1: [9, 9], 2: [1, 3], 3: [2, 4], 4: [5, 5], 5: [9, 9], 6: [3, 3]}
"""Turns of the episodes of each learner step. Step 4 is evaluated, so step 5 plays beside its evaluation."""


def a_run(folder: Path, played: dict[int, list[int]] = LENGTHS, **learner: object) -> RunFolder:
    """A turn alone takes 2 s and each further episode adds 0.5 s; training takes 1 s and 0.25 s a turn and rank."""
    config = Config.model_validate({
        "name": "a", "steps": 6, "eval": {"every": 4}, "rollout": {"slots": 2}, "checkpoint": {"every": 3},
        "learner": {"groups_per_step": 1, "group_size": 2, "ranks": 2} | learner})
    dump_config(config, folder / "config.yaml")
    (folder / "run.json").write_text("{}")
    (folder / "episodes").mkdir()
    for step, lengths in played.items():
        turns, slow = sum(lengths), 100.0 if step in (1, 5) else 0.0
        append_row(folder / "metrics.jsonl", {
            "step": step, "seconds/wait": slow + max(lengths) * 2 + turns * 0.5, "seconds/credit": 0.0,
            "seconds/pack": 0.0, "seconds/optimizer": 1.0, "seconds/forward_backward": turns / 2 * 0.25,
            "seconds/publish": 0.1 + slow, "seconds/checkpoint": {4: 3.0, 5: 5.0}.get(step, 0.0)})
        rows = [{"group": "g", "k": k, "worker": "rollout-0"} for k, n in enumerate(lengths) for _ in range(n)]
        pq.write_table(pa.Table.from_pylist(rows), folder / "episodes" / f"step-{step:08d}.parquet")
    return RunFolder(folder)


def test_a_run_tells_the_times_of_its_parts(tmp_path: Path):
    figures = calibrate([a_run(tmp_path)])
    assert (figures.turn_alone, figures.turn_share) == pytest.approx((2.0, 0.5))
    assert (figures.learner_step, figures.learner_turn) == pytest.approx((1.0, 0.25))
    assert (figures.publish, figures.checkpoint, figures.store_turn) == pytest.approx((0.1, 3.0, REDIS_TURN))
    assert sorted(figures.turns) == [1, 2, 3, 3, 3, 4, 5, 5]


def test_fitted_times_are_never_negative():
    assert two_times([1, 1], [1, 2], [3, 4]) == pytest.approx((2, 1))
    assert two_times([1, 1], [1, 2], [4, 2]) == pytest.approx((3, 0))  # free, they would be 6 and -2
    assert two_times([1, 2], [1, 1], [4, 2]) == pytest.approx((0, 3))


def test_a_run_that_does_not_show_its_times_is_refused(tmp_path: Path):
    (tmp_path / "stale").mkdir()
    with pytest.raises(UserError, match=r"learner\.staleness=1"):
        calibrate([a_run(tmp_path / "stale", staleness=1)])
    run = a_run(tmp_path)
    for step in (2, 3):
        (tmp_path / "episodes" / f"step-{step:08d}.parquet").unlink()
    with pytest.raises(UserError, match="2 learner steps show the times of parts, and 3 are needed"):
        calibrate([run])


@pytest.mark.attack
@pytest.mark.parametrize("damage", [{"seconds/wait": None}, {"seconds/pack": "x"}, {"seconds/optimizer": -1},
                                    {"seconds/credit": []}, {"seconds/publish": 1e308}, {"step": 9}], ids=str)
def test_a_damaged_line_and_an_archive_without_rows_show_nothing(tmp_path: Path, damage: dict):
    """Three other steps are left, and they show what the run shows."""
    run = a_run(tmp_path, LENGTHS | {7: [2, 6], 8: [8, 1]})
    *lines, last = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join([*lines, json.dumps(json.loads(last) | damage)]) + "\n")
    pq.write_table(pa.table({"group": pa.array([], pa.string()), "k": pa.array([], pa.int64()),
                             "worker": pa.array([], pa.string())}), tmp_path / "episodes" / "step-00000009.parquet")
    assert calibrate([run]).turn_alone == pytest.approx(2.0)


def test_steps_that_are_all_alike_tell_two_times_only_beside_those_of_another_run(tmp_path: Path):
    """Two episodes play at once in one run, and a single one in the other. All have two turns."""
    for name in ("both", "one"):
        (tmp_path / name).mkdir()
    both = a_run(tmp_path / "both", {step: [2, 2] for step in LENGTHS})
    one = a_run(tmp_path / "one", {step: [2] for step in LENGTHS})
    with pytest.raises(UserError, match=r"add --from of a run with other rollout\.slots"):
        calibrate([both])
    figures = calibrate([both, one])
    assert (figures.turn_alone, figures.turn_share) == pytest.approx((2.0, 0.5))


def test_the_command_prints_times_that_it_takes_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import json

    folder = a_run(tmp_path)
    arguments = ["--config", str(folder.config_file), "rollout.gpus=1", "learner.gpus=1"]
    assert main([*arguments, "--from", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    figures = tmp_path / "figures.json"
    figures.write_text(json.dumps(said["figures"]))
    assert main([*arguments, "--figures", str(figures), "--price", "2", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["forecast"]
    assert again["steps_per_hour"] == said["forecast"]["steps_per_hour"]
    assert again["cost"] == pytest.approx(2 * again["gpu_hours"])
    assert main([*arguments, "--figures", str(figures), "--price", "2"]) == 0
    assert f"{again['steps_per_hour']:.4g}" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "what"), [("{", "has no figures"), (
    '{"turns": [1], "turn_alone": -1, "turn_share": 0, "learner_step": 0, "learner_turn": 0}', "negative time"), (
    '{"turns": [1], "turn_alone": 0, "turn_share": 0, "learner_step": 0, "learner_turn": 0}', "step takes 0 s"), (
    '{"turns": [1], "turn_alone": 1e308, "turn_share": 1e308, "learner_step": 0, "learner_turn": 0}', "takes nan s")])
def test_wrong_figures_are_told_in_one_line(tmp_path: Path, capsys, text: str, what: str):
    (tmp_path / "figures.json").write_text(text)
    assert main(["--config", "alfworld-tiny", "--figures", str(tmp_path / "figures.json")]) == 2
    assert what in capsys.readouterr().err


def test_a_forecast_of_the_run_itself_takes_its_time(tmp_path: Path):
    """The longer of two episodes drawn from [1, 2, 3, 3, 3, 4, 5, 5] has 3.97 turns on average, and both have 6.5.

    So 2 · 3.97 + 0.5 · 6.5 s are sampled, 1 + 6.5 / 2 · 0.25 s trained, 0.1 s published: 13.1 s with the draw's error.
    """
    config = Config.model_validate({"name": "a", "steps": 6, "rollout": {"slots": 2}, "eval": {"every": 0},
                                    "learner": {"groups_per_step": 1, "group_size": 2, "ranks": 2}})
    found = forecast(config, calibrate([a_run(tmp_path)]), steps=400)
    assert 3600 / found.steps_per_hour == pytest.approx(13.1, rel=0.03)
