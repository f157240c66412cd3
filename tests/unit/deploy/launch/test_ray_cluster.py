"""A private Ray that does not start at once is started again, until its time is over."""

from pathlib import Path

import pytest

from deploy.launch.ray_cluster import _start
from services.errors import DeadlineExceeded

pytestmark = pytest.mark.ray


def slow(*, starts: int):
    """A start that fails as Ray's does on a busy machine, so many times."""
    made: list[int] = []

    def start() -> None:
        made.append(1)
        if len(made) <= starts:
            raise Exception("The current node timed out during startup.")

    return start, made


def test_a_ray_that_was_too_slow_is_started_again(tmp_path: Path):
    start, made = slow(starts=2)
    _start(start, tmp_path, 600.0)
    assert len(made) == 3


def test_it_is_given_up_after_its_time_with_the_reason_and_the_key(tmp_path: Path):
    start, made = slow(starts=1)
    with pytest.raises(DeadlineExceeded, match=r"0\.001 s \(ray\.start_seconds\): .*timed out during startup"):
        _start(start, tmp_path, 0.001)
    assert len(made) == 1
