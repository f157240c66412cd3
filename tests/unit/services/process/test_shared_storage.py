"""A node that does not see a run's folders says so at once."""

from pathlib import Path

import pytest

from services.errors import Fault
from services.process.shared_storage import check_seen


def test_folders_that_are_there_pass(tmp_path: Path):
    check_seen(tmp_path, tmp_path)


def test_the_missing_one_is_named_with_what_to_do(tmp_path: Path):
    with pytest.raises(Fault, match=r"absent is not there on .*; set runs_dir"):
        check_seen(tmp_path, tmp_path / "absent")
