"""The run's log."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from services import logs


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leaves other tests the logging that they found."""
    yield
    logs.configure_logs(None, process="test")
    structlog.reset_defaults()


def test_an_event_is_one_json_line_and_one_short_line(tmp_path: Path):
    shown: list[str] = []
    logs.configure_logs(tmp_path / "run", process="learner-0", show=shown.append)
    logs.get_logger("train").info("step done", step=3, seconds=1.23456)
    event = json.loads(logs.log_path().read_text())
    assert (event["format"], event["process"], event["name"], event["event"]) == (1, "learner-0", "train", "step done")
    assert (event["level"], event["step"], event["seconds"]) == ("info", 3, 1.23456)
    assert shown == [f"{event['time'][11:19]} step done  step=3 seconds=1.235"]


def test_a_traceback_goes_to_the_file_and_not_to_the_terminal(tmp_path: Path):
    shown: list[str] = []
    logs.configure_logs(tmp_path, process="cli", show=shown.append)
    try:
        raise ValueError("no such group")
    except ValueError as error:
        logs.get_logger("cli").error("failed", exc_info=error)
    assert "ValueError: no such group" in json.loads((tmp_path / "log.jsonl").read_text())["exception"]
    assert shown[0].endswith("error: failed")


def test_several_processes_share_one_file(tmp_path: Path):
    for process in ("controller", "rollout-0"):
        logs.configure_logs(tmp_path, process=process, show=None)
        logs.get_logger("x").warning("here")
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["process"] for line in lines] == ["controller", "rollout-0"]


def test_what_is_below_the_level_is_left_out(tmp_path: Path):
    logs.configure_logs(tmp_path, process="cli", show=None, level="warning")
    logs.get_logger("x").info("quiet")
    assert not (tmp_path / "log.jsonl").exists()
