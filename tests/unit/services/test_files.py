"""Files are written whole or not at all, and read within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services import files
from services.errors import Fault
from services.files import Damaged, check_seen, read_bounded, read_json, write_whole

pytestmark = pytest.mark.attack


def test_a_write_replaces_the_old_file_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that is full at the last moment leaves the old file and no draft."""
    path = tmp_path / "run.json"
    write_whole(path, "old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_takes_plain_files_up_to_a_size(tmp_path: Path):
    (tmp_path / "large").write_bytes(b"x" * 11)
    assert read_bounded(tmp_path / "large", 11) == b"x" * 11
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(Damaged, match="is not a plain file"):
            read_bounded(path, 10)
    for size, most in ((11, "10 bytes"), (4097, "4096 bytes"), ((1 << 20) + 1, "1 MiB")):
        (tmp_path / "large").write_bytes(bytes(size))
        with pytest.raises(Damaged, match=f"large is larger than {most}; give a smaller one"):
            read_bounded(tmp_path / "large", size - 1)


def test_a_folder_in_place_of_a_file_is_named_and_leaves_no_handle_open(tmp_path: Path):
    handles = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(IsADirectoryError) as raised:
        read_bounded(tmp_path)
    assert raised.value.filename == str(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == handles


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "b"}', "[" * 100_000, '{"a": 1e999}', "\x00", '{"a": NaN}'])
def test_a_document_of_another_form_is_damaged(tmp_path: Path, text: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Damaged, match=r"a.json is damaged \(.+\)"):
        read_json(tmp_path / "a.json", dict[str, int])


def test_folders_that_are_there_pass(tmp_path: Path):
    check_seen(tmp_path, tmp_path)


def test_the_missing_one_is_named_with_what_to_do(tmp_path: Path):
    with pytest.raises(Fault, match=r"absent is not there on .*; set runs_dir"):
        check_seen(tmp_path, tmp_path / "absent")
