"""metrics.jsonl and its columns by task type, evaluations.jsonl and the Prometheus text."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from services.errors import DeadlineExceeded, UserError
from services.telemetry import metrics_file as metrics
from services.telemetry.evaluations import TRAINED, curve_label, curve_of, title_of
from services.telemetry.metrics_file import append_row, read_metrics
from services.telemetry.task_types import TypeResult, contrast, type_columns, type_results


def test_rows_come_back_with_their_format(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    metrics.append_row(path, {"step": 1, "grad_norm": np.float32(0.5)})
    assert metrics.read_rows(path) == [{"format": 1, "step": 1, "grad_norm": 0.5}]


def test_a_row_waits_for_its_folder_instead_of_making_it(tmp_path: Path):
    """The folder is on a mount that comes back."""
    path = tmp_path / "run" / "metrics.jsonl"
    with pytest.raises(DeadlineExceeded, match=r"metrics\.jsonl could not be written for 0 s"):
        metrics.keep_row(path, {"step": 1}, wait_s=0.0)
    assert list(tmp_path.iterdir()) == []
    threading.Timer(0.3, path.parent.mkdir).start()
    metrics.keep_row(path, {"step": 1}, wait_s=60.0)
    assert [row["step"] for row in metrics.read_rows(path)] == [1]


def test_values_that_json_does_not_know_become_null(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    metrics.append_row(path, {"step": 1, "loss/kl": float("nan"), "by_type": {"pick": float("inf")}})
    assert json.loads(path.read_text()) == {"format": 1, "step": 1, "loss/kl": None, "by_type": {"pick": None}}


def test_a_line_torn_by_a_crash_spoils_no_other(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    metrics.append_row(path, {"step": 1})
    with path.open("a") as file:
        file.write('{"format": 1, "ste')
    metrics.append_row(path, {"step": 2})
    assert [row["step"] for row in metrics.read_rows(path)] == [1, 2]


def test_a_step_taken_again_after_a_resume_counts_once(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for step, value in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4)):
        metrics.append_row(path, {"step": step, "success_rate": value})
    assert [(row["step"], row["success_rate"]) for row in metrics.read_metrics(path)] == [(1, 0.1), (2, 0.4), (3, 0.3)]


def test_an_evaluation_made_again_counts_as_made_last(tmp_path: Path):
    path = tmp_path / "evaluations.jsonl"
    for label, temperature, rate in [("step-0", 1.0, 0.1), ("step-0", 0.4, 0.2), ("step-0", 1.0, 0.3)]:
        metrics.append_row(path, {"label": label, "temperature": temperature, "success_rate": rate})
    assert [row["success_rate"] for row in metrics.read_evaluations(path)] == [0.3, 0.2]


def test_a_run_that_goes_on_from_a_checkpoint_drops_what_came_after_it(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    metrics.drop_rows(path, after_step=0)
    for step in (1, 2, 3):
        metrics.append_row(path, {"step": step})
    metrics.drop_rows(path, after_step=2)
    assert metrics.read_rows(path) == [{"format": 1, "step": 1}, {"format": 1, "step": 2}]
    metrics.append_row(path, {"step": 3})
    assert len(metrics.read_rows(path)) == 3


def test_a_missing_file_has_no_rows(tmp_path: Path):
    assert metrics.read_rows(tmp_path / "absent") == []


def test_a_row_must_hold_exactly_the_frozen_keys():
    row = dict.fromkeys(metrics.METRIC_KEYS, 0)
    metrics.check_metrics(row)
    with pytest.raises(ValueError, match=r"unknown .'tempo'"):
        metrics.check_metrics({**row, "tempo": 1})
    row.pop("seconds/wait")
    with pytest.raises(ValueError, match=r"missing .'seconds/wait'"):
        metrics.check_metrics(row)



@pytest.mark.parametrize("line", [
    "[1]", "null", '{"step": "two"}', '{"step": -1}', '{"step": 1e400}', '{"step": 2, "loss/kl": {}}', "[" * 100_000,
    '{"step": 2, "version": 3}', '{"step": true}', "\x00", '{"step": 2', '{"step": 2, "grad_norm": "large"}',
    '{"step": 2, "loss/kl": 1e308}', '{"step": 2, "loss/kl": -1e308}', '{"step": 2, "episodes": 1e400}',
    '{"step": 2, "success_low": "0"}', '{"step": 2, "success_by_task": {"a": "won"}}'])
def test_a_damaged_line_is_left_out_and_spoils_no_other(tmp_path: Path, line: str):
    path = tmp_path / "metrics.jsonl"
    metrics.append_row(path, {"step": 1})
    with path.open("a") as file:
        file.write(f"{line}\n")
    metrics.append_row(path, {"step": 3})
    assert [row["step"] for row in metrics.read_metrics(path)] == [1, 3]
    metrics.drop_rows(path, after_step=1)
    assert [row["step"] for row in metrics.read_rows(path)] == [1]


def test_a_device_in_place_of_a_file_is_one_line(tmp_path: Path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is not a plain file"):
        metrics.read_metrics(tmp_path / "metrics.jsonl")


def test_the_curve_has_the_evaluations_during_training_alone_by_step():
    rows = [{"label": label, "step": step} for label, step in (
        (curve_label(20), 20), ("panel-trained", 30), (curve_label(5), 5), ("panel-cold", 0), ("eval-react", 7))]
    assert [row["step"] for row in curve_of(rows)] == [5, 20]


def test_people_read_titles_in_place_of_labels():
    assert [title_of(label) for label in (curve_label(20), TRAINED, "eval")] == [
        "evaluation at step 20", "held-out games, after RL", "evaluation"]


@pytest.mark.parametrize(("success", "expected"), [(0.0, 0.0), (0.25, 0.75), (0.5, 1.0), (1.0, 0.0)])
def test_contrast_is_largest_at_half(success: float, expected: float):
    assert contrast(success) == expected


def test_columns_are_means_over_the_groups_of_a_type():
    """Two groups of one type with success .5 and 0: .25, and contrast (1 + 0) / 2."""
    assert type_columns([("pick", 0.5), ("cool", 1.0), ("pick", 0.0)]) == {
        "type/cool/groups": 1, "type/cool/success": 1.0, "type/cool/contrast": 0.0,
        "type/pick/groups": 2, "type/pick/success": 0.25, "type/pick/contrast": 0.5}


def test_results_weigh_each_group_alike_through_the_file(tmp_path: Path):
    """A type's name may hold a slash. (2 x .25 + .75) / 3 and (2 x .5 + .75) / 3."""
    file = tmp_path / "metrics.jsonl"
    append_row(file, {"step": 1, **type_columns([("a/b", 0.5), ("a/b", 0.0)])})
    append_row(file, {"step": 2, "success_rate": 0.5, **type_columns([("a/b", 0.75)])})
    assert type_results(read_metrics(file)) == {
        "a/b": TypeResult(groups=3, success=pytest.approx(1.25 / 3), contrast=pytest.approx(1.75 / 3))}


@pytest.mark.parametrize("damage", [{"type/a/contrast": None}, {"type/a/groups": "2"}, {"type/a/groups": 0}])
def test_columns_that_are_no_results_are_left_out(damage: dict[str, object], tmp_path: Path):
    append_row(tmp_path / "metrics.jsonl", {"step": 1, **type_columns([("a", 0.5)]), **damage})
    assert type_results(read_metrics(tmp_path / "metrics.jsonl")) == {}
