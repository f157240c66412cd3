"""The file of the trials of a prompting baseline on a disk that damages it."""

from pathlib import Path

import pytest

from deploy.training.prompting import open_trials
from services.errors import UserError


def test_a_line_of_a_damaged_disk_is_no_trial_and_no_settings(tmp_path: Path):
    file, settings = tmp_path / "e.jsonl", {"model": "m"}
    open_trials(file, settings)
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"task": "\xff"}\n')
    assert open_trials(file, settings) == []
    file.write_bytes(whole.replace(b"m", b"\xff"))
    with pytest.raises(UserError, match="does not begin with the settings"):
        open_trials(file, settings)


@pytest.mark.parametrize("content", [b"\n", b'{"format": 1, "settings": "m"}\n', b'["settings"]\n'])
def test_a_file_without_settings_is_one_line(tmp_path: Path, content: bytes):
    file = tmp_path / "e.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match="does not begin with the settings"):
        open_trials(file, {"model": "m"})
    assert file.read_bytes() == content


def test_settings_that_a_full_disk_cut_short_are_written_again(tmp_path: Path):
    file, settings = tmp_path / "e.jsonl", {"model": "m"}
    open_trials(file, settings)
    whole = file.read_bytes()
    for cut in (12, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert open_trials(file, settings) == []
        assert file.read_bytes() == whole
    file.write_bytes(b"notes")
    with pytest.raises(UserError, match="does not begin with the settings"):
        open_trials(file, settings)
    assert file.read_bytes() == b"notes"
