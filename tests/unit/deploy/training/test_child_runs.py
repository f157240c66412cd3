"""Short real commands as child processes."""

from pathlib import Path

import psutil
import pytest
from processes import words_of
from waiting import wait_until

from deploy.training import child_runs
from deploy.training.child_runs import Child, ChildFailed, failed, run_child


def servers() -> list[psutil.Process]:
    """Returns the living environment servers that this process has started."""
    return [child for child in psutil.Process().children() if "serve-env" in words_of(child)]


def test_a_command_that_ends_well_leaves_its_output(tmp_path: Path):
    run_child("the help", ["doctor", "--help"], log=tmp_path / "log", out=tmp_path / "out", deadline_s=60)
    assert "gagpo doctor" in (tmp_path / "out").read_text()
    assert (tmp_path / "log").read_text() == ""


def test_a_failed_one_gives_its_status_and_its_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = tmp_path / "run.log"
    with pytest.raises(ChildFailed) as caught:
        run_child("run x", ["status", str(tmp_path / "none")], log=log, deadline_s=60)
    assert caught.value.status == 2
    assert str(caught.value) == f"run x ended with status 2; its last lines are above, all are in {log}"
    assert failed(caught.value) == 2
    said = capsys.readouterr().err.splitlines()
    assert "is not the folder of a run" in said[0]
    assert said[1].startswith("error: run x ended")


def test_how_to_go_on_with_a_child_alone_is_not_repeated(tmp_path: Path):
    """Who did so lost the run: an experiment makes a run without a record again."""
    (tmp_path / "log").write_text("step 1\nto continue: gagpo train --resume runs/x\nerror: the disk is full\n")
    assert Child("x", [], log=tmp_path / "log").tail(12) == ["step 1", "error: the disk is full"]


def test_one_that_takes_too_long_is_ended(tmp_path: Path):
    child = Child("a server", ["serve-env", "--config", "alfworld-tiny", "--port", "0"], log=tmp_path / "log")
    child.start()
    with pytest.raises(ChildFailed, match="a server ran for more than 0 minutes"):
        child.wait(0.1)
    assert servers() == []


def test_leaving_ends_the_child(tmp_path: Path):
    child = Child("a server", ["serve-env", "--config", "alfworld-tiny", "--port", "0"], log=tmp_path / "log")
    child.start()
    assert not child.ended(60)
    wait_until(lambda: len(servers()) == 1)
    child.stop()
    assert servers() == []


def test_a_child_is_not_killed_while_it_may_work_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run waits supervision.leave_seconds for its checkpoint before it begins to stop."""
    monkeypatch.setattr(child_runs, "STOP_GRACE_S", 0.0)
    child = Child("a server", ["serve-env", "--config", "alfworld-tiny", "--port", "0"], log=tmp_path / "log",
                  leave_s=240)
    child.start()
    wait_until(lambda: "serving" in "".join(child.tail(20)))
    child.stop()
    with pytest.raises(ChildFailed, match="a server ended with status 143"):  # it has stopped by itself
        child.ended()
