"""Each line of metrics.jsonl is shown once, also if the file is away meanwhile."""

from pathlib import Path

import pytest

from deploy.training.pipeline import MetricsFollower
from services.telemetry.metrics_file import append_row, drop_rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    append_row(path, {"step": 1})
    return path


def follow(file: Path) -> tuple[MetricsFollower, list[int]]:
    shown: list[int] = []
    return MetricsFollower(file, lambda rows: shown.extend(row["step"] for row in rows), outage_s=60), shown


def test_lines_of_an_earlier_process_count_as_shown(file: Path):
    follower, shown = follow(file)
    follower.tick()
    append_row(file, {"step": 2})
    follower.tick()
    follower.tick()
    assert shown == [2]


def test_steps_that_are_taken_again_are_shown_again(file: Path):
    follower, shown = follow(file)
    append_row(file, {"step": 2})
    follower.tick()
    drop_rows(file, after_step=1)
    follower.tick()
    append_row(file, {"step": 2})
    follower.tick()
    assert shown == [2, 2]


@pytest.mark.parametrize("unreadable", [False, True])
def test_no_line_is_shown_again_after_the_file_was_away(file: Path, unreadable: bool):
    """It is missing, or it is a link to itself, which cannot be read."""
    follower, shown = follow(file)
    append_row(file, {"step": 2})
    follower.tick()
    aside = file.rename(file.with_name("aside"))
    if unreadable:
        file.symlink_to(file)
    follower.tick()
    aside.rename(file)
    follower.tick()
    append_row(file, {"step": 3})
    follower.tick()
    assert shown == [2, 3]
