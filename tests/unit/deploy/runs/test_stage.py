"""Whether a driver lives, and how it ended, as another process reads it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import structlog

from deploy.runs.stage import SILENT_S, Stage, StageRecord, read_stage, this_host


def ticks() -> float:
    """Returns the start of this process as Linux keeps it: field 22 of /proc/self/stat."""
    return float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[22 - 3])


def stage(**changes: object) -> Stage:
    now = time.time()
    return Stage(**{"since": now, "at": now, "host": this_host(), "pid": os.getpid(),
                    "born": ticks(), **changes})


def test_without_a_stage_file_there_is_no_stage(tmp_path: Path):
    assert read_stage(tmp_path / "stage.json") is None


def test_a_living_driver_is_seen_in_its_stage(tmp_path: Path):
    path = tmp_path / "stage.json"
    with StageRecord(path) as record:
        record.set("cold start", "")
        found = read_stage(path)
    assert found is not None
    assert (found.name, found.alive) == ("cold start", True)


@pytest.mark.parametrize(("error", "ended"), [
    (None, "finished"), (KeyboardInterrupt(), "interrupted by Ctrl-C"),
    (SystemExit(143), "stopped with exit status 143"), (ValueError("no\nmore"), "ValueError: no")])
def test_the_end_is_written_with_its_reason(tmp_path: Path, error: BaseException | None, ended: str):
    path = tmp_path / "stage.json"
    record = StageRecord(path)
    record.__enter__()
    record.set("cold start", "half done")
    record.__exit__(None, error, None)
    found = read_stage(path)
    assert found is not None
    assert (found.ended, found.doing, found.alive) == (ended, "half done", False)


def test_a_full_disk_costs_the_stage_and_not_the_run(tmp_path: Path):
    """A folder in the place of the draft has the effect of a full disk."""
    path = tmp_path / "stage.json"
    with structlog.testing.capture_logs() as told, StageRecord(path) as record:
        draft = tmp_path / f".stage.json.{socket.gethostname()}-{os.getpid()}.new"
        draft.mkdir()
        record.set("cold start", "")
        record.set("learning", "")
        draft.rmdir()
    assert [line["file"] for line in told] == [str(path)], "it is told once"
    found = read_stage(path)
    assert found is not None
    assert (found.name, found.ended) == ("learning", "finished")


CODE = ("import sys, pathlib, deploy.runs.stage as s\n"
        "with s.StageRecord(pathlib.Path(sys.argv[1])):\n    print('ready', flush=True); sys.stdin.read()")


@pytest.mark.skipif(bool(os.geteuid()) or shutil.which("unshare") is None, reason="it needs root and unshare")
def test_a_driver_in_a_container_is_seen_alive_although_its_process_id_means_nothing_outside(tmp_path: Path):
    """The container has this machine's hostname."""
    path = tmp_path / "stage.json"
    inside = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", CODE, str(path)]
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        assert getattr(read_stage(path), "alive", None) is True
        one.kill()


def test_a_driver_that_was_killed_is_dead_although_it_said_nothing(tmp_path: Path):
    path = tmp_path / "stage.json"
    command = [sys.executable, "-c", CODE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        assert getattr(read_stage(path), "alive", None) is True
        one.kill()
    assert getattr(read_stage(path), "alive", None) is False


def test_a_driver_is_known_by_ticks_since_boot_which_stay_when_the_clock_is_set(tmp_path: Path):
    with StageRecord(tmp_path / "stage.json"):
        found = read_stage(tmp_path / "stage.json")
    assert found is not None
    assert found.born == ticks()
    assert stage().alive


def test_a_reused_process_number_is_another_process():
    assert not stage(born=1.0).alive


def test_a_copy_of_a_run_that_goes_on_does_not_go_on_and_a_moved_run_does(tmp_path: Path):
    """A backup claimed to be the run: `gagpo scale` told of a change that nobody made."""
    run, copy, moved = (tmp_path / name for name in ("run", "copy", "moved"))
    run.mkdir()
    with StageRecord(run / "stage.json"):
        shutil.copytree(run, copy)
        assert getattr(read_stage(run / "stage.json"), "alive", None) is True
        run.rename(moved)
        assert getattr(read_stage(moved / "stage.json"), "alive", None) is True
        found = read_stage(copy / "stage.json")
    assert found is not None
    assert (found.ended, found.alive) == ("copied while it was running", False)


@pytest.mark.parametrize("left", [{"ended": "interrupted by Ctrl-C"}, {"born": 1.0}], ids=["ended", "killed"])
def test_the_copy_of_a_run_that_is_over_says_how_it_ended(tmp_path: Path, left: dict[str, object]):
    run, copy = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    (run / "stage.json").write_bytes(msgspec.json.encode(stage(folder=run.stat().st_ino, **left)))
    shutil.copytree(run, copy)
    found = read_stage(copy / "stage.json")
    assert found == read_stage(run / "stage.json")
    assert found is not None
    assert not found.alive


def test_a_driver_elsewhere_lives_while_it_writes():
    assert stage(host="elsewhere").alive
    assert not stage(host="elsewhere", at=time.time() - 2 * SILENT_S).alive


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_driver_whose_clock_is_wrong_lives_while_it_writes(tmp_path: Path, skew: float):
    """The clock of the shared folder says how old the file is."""
    path, now = tmp_path / "stage.json", time.time()
    path.write_bytes(msgspec.json.encode(stage(host="elsewhere", at=now + skew)))
    assert getattr(read_stage(path), "alive", None) is True
    os.utime(path, (now - 2 * SILENT_S,) * 2)
    assert getattr(read_stage(path), "alive", None) is False


READS = ("import os, sys, pathlib, deploy.runs.stage as s\n"
         "writes = os.O_WRONLY | os.O_RDWR\n"
         "sys.addaudithook(lambda event, seen: event == 'open' and seen[2] & writes and print(seen))\n"
         "s.read_stage(pathlib.Path(sys.argv[1]))")


def test_reading_the_stage_of_another_machine_writes_nothing(tmp_path: Path):
    path = tmp_path / "stage.json"
    path.write_bytes(msgspec.json.encode(stage(host="elsewhere")))
    assert subprocess.run([sys.executable, "-c", READS, str(path)], check=True, capture_output=True).stdout == b""


HIDDEN = """
import os, sys
from pathlib import Path

from deploy.runs.stage import read_stage

found = read_stage(Path(sys.argv[1]))
os.setgid(65534), os.setuid(65534)
assert not Path(f"/proc/{found.pid}").exists()
print(found.alive)
"""


@pytest.mark.skipif(subprocess.run("unshare -m true", shell=True, capture_output=True, check=False).returncode != 0,
                    reason="needs the right to mount")
def test_the_driver_of_another_user_is_seen_alive_where_processes_of_others_are_hidden(tmp_path: Path):
    script = f"mount -t proc -o hidepid=2 proc /proc && exec {sys.executable} -c \"$0\" \"$1\""
    with StageRecord(tmp_path / "stage.json"):
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, HIDDEN, tmp_path / "stage.json"],
                              capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_pipe_in_the_place_of_the_file_or_of_its_draft_holds_nobody_up(tmp_path: Path):
    """Opening a pipe for writing waits for a reader."""
    path = tmp_path / "stage.json"
    for name in (path.name, f".{path.name}.new", f".{path.name}.{socket.gethostname()}-{os.getpid()}.new"):
        os.mkfifo(tmp_path / name)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)
    with StageRecord(path):
        assert read_stage(path) is not None
    signal.alarm(0)
