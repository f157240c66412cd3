"""A value whose file is away for a while: in its place is a link to itself, which cannot be read."""

import time
from pathlib import Path

import pytest
import structlog

from services.errors import DeadlineExceeded
from services.outages import LastValue


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def away(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def back(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


def test_the_last_value_holds_until_the_file_can_be_read_and_each_outage_is_told_once(file: Path):
    value = LastValue(file.read_text, seconds=60)
    assert value.now() == "one"
    with structlog.testing.capture_logs() as told:
        for text in ("two", "three"):
            before = value.now()
            away(file)
            assert [value.now(), value.now()] == [before, before]
            back(file, text)
            assert value.now() == text
    assert [line["at_most_s"] for line in told] == [60, 60]


def test_an_outage_ends_with_the_name_of_its_key(file: Path):
    value = LastValue(file.read_text, seconds=0.05)
    value.now()
    away(file)
    assert value.now() == "one"
    time.sleep(0.1)
    with pytest.raises(DeadlineExceeded, match=r"could not be read for 0 s \(.*file.*; learner.collective_s\)"):
        value.now()


def test_without_a_value_or_without_patience_the_error_is_raised(file: Path):
    away(file)
    with pytest.raises(OSError, match="file"):
        LastValue(file.read_text, seconds=60).now()
    back(file, "two")
    value = LastValue(file.read_text, seconds=0)
    value.now()
    away(file)
    with pytest.raises(OSError, match="file"):
        value.now()


def test_a_value_that_was_just_written_holds(file: Path):
    value = LastValue(file.read_text, seconds=60)
    value.now()
    value.keep("two")
    away(file)
    assert value.now() == "two"
