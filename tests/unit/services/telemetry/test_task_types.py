"""The columns of metrics.jsonl by task type, by hand."""

from pathlib import Path

import pytest

from services.telemetry.metrics_file import append_row, read_metrics
from services.telemetry.task_types import TypeResult, contrast, type_columns, type_results


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
