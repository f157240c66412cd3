"""The run's log."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from services.errors import EngineFault
from services.telemetry import logs


def test_an_event_is_one_json_line_and_one_short_line(tmp_path: Path):
    shown: list[logs.Event] = []
    (tmp_path / "run").mkdir()
    logs.configure_logs(tmp_path / "run", process="learner-0", show=shown.append)
    logs.get_logger("train").info("step done", step=3, seconds=1.23456)
    event = json.loads(logs.log_path().read_text())
    assert (event["format"], event["process"], event["name"], event["event"]) == (1, "learner-0", "train", "step done")
    assert (event["level"], event["step"], event["seconds"]) == ("info", 3, 1.23456)
    assert (event["run"], event["role"], event["rank"]) == ("run", "learner", 0)
    assert [logs.short_line(one) for one in shown] == [f"{event['time'][11:19]} step done  step=3 seconds=1.235"]


def test_half_of_a_surrogate_pair_is_a_question_mark(tmp_path: Path):
    """An agent's error may hold one, from json.loads of the model's answer."""
    logs.configure_logs(tmp_path, process="rollout-0", show=None)
    logs.get_logger("worker").warning("episode failed", reason="no city \ud83d")
    assert json.loads((tmp_path / "log.jsonl").read_text())["reason"] == "no city ?"


@pytest.mark.parametrize("folder", [True, False])
def test_a_full_disk_ends_no_process_that_logs(tmp_path: Path, folder: bool):
    """Neither the file's nor that behind stderr, where the line goes then."""
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    code = ("import sys, pathlib\nfrom services.telemetry.logs import configure_logs, get_logger\n"
            "configure_logs(pathlib.Path(sys.argv[1]) if sys.argv[1] else None)\n"
            "get_logger('x').info('hello')\nprint('goes on')\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path) if folder else ""], stdout=subprocess.PIPE,
                              stderr=full, text=True, timeout=60, check=False)
    assert done.stdout == "goes on\n"


def test_a_traceback_goes_to_the_file_and_not_to_the_terminal(tmp_path: Path):
    shown: list[logs.Event] = []
    logs.configure_logs(tmp_path, process="cli", show=shown.append)
    try:
        raise ValueError("no such group")
    except ValueError as error:
        logs.get_logger("cli").error("failed", exc_info=error)
    assert "ValueError: no such group" in json.loads((tmp_path / "log.jsonl").read_text())["exception"]
    assert logs.short_line(shown[0]).endswith("error: failed")


def test_a_person_sees_the_traceback_where_no_file_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for folder, shown in ((None, True), (tmp_path, False)):
        logs.configure_logs(folder, process="environment")
        logs.get_logger("x").error("failed", exc_info=ValueError("no such group"))
        assert ("ValueError: no such group" in capsys.readouterr().err) is shown


def test_libraries_warn_in_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.configure_logs(tmp_path, process="environment-1", show=None)
    logs.adopt_libraries()
    library = logging.getLogger("some.library")  # of its own: what runs in this process configures the known ones
    library.info("not of interest")
    library.warning("Cancel %s running task(s)", 3)
    try:
        raise ValueError("no such group")
    except ValueError:
        library.exception("Exception in ASGI application")
    warned, failed = (json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines())
    assert (warned["name"], warned["level"]) == ("some.library", "warning")
    assert warned["event"] == "Cancel 3 running task(s)"
    assert (failed["level"], failed["rank"]) == ("error", 1)
    assert failed["exception"].endswith("ValueError: no such group")


@pytest.mark.parametrize(("level", "text", "values"), [
    (logging.WARNING, "%d of them", ("some",)), (logging.WARNING + 5, "a level of its own", ())])
def test_a_library_that_logs_wrongly_goes_on(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: int, text: str,
        values: tuple[str, ...]):
    """The standard handlers print such an error, and never raise it in the code that logs."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.configure_logs(tmp_path, process="learner-0", show=None)
    logs.adopt_libraries()
    logging.getLogger("some.library").log(level, text, *values)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_stderr_gets_short_lines_on_a_terminal_and_json_elsewhere(
    terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
):
    logs.configure_logs(tmp_path, process="controller")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    logs.get_logger("x").warning("here", step=3)
    line = capsys.readouterr().err.strip()
    if terminal:
        assert line.endswith("warning: here  step=3")
    else:
        event = json.loads(line)
        assert (event["role"], event["step"]) == ("controller", 3)
        assert "rank" not in event


async def test_the_version_is_the_process_s_and_the_ticket_its_task_s(tmp_path: Path):
    logs.configure_logs(tmp_path, process="rollout-1", show=None)
    log = logs.get_logger("x")

    async def play(ticket: str) -> None:
        structlog.contextvars.bind_contextvars(ticket=ticket)
        await asyncio.sleep(0)
        await asyncio.to_thread(log.info, "played")

    await asyncio.gather(play("a"), play("b"))
    logs.bind(version="1.2")
    log.info("idle")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert sorted(line["ticket"] for line in lines[:2]) == ["a", "b"]
    assert "ticket" not in lines[2]
    assert [line.get("version") for line in lines] == [None, None, "1.2"]


def test_processes_of_one_node_share_a_file_and_no_two_nodes_do(tmp_path: Path):
    for process, node in (("controller", "localhost"), ("rollout-0", "127.0.0.1"), ("rollout-1", "10.0.0.2"),
                          ("learner-0", "10.0.0.2"), ("rollout-2", "10.0.0.3")):
        with logs.life_of(process, tmp_path, node=node):
            pass
    written = {path.relative_to(tmp_path).as_posix(): list(dict.fromkeys(
        json.loads(line)["process"] for line in path.read_text().splitlines())) for path in tmp_path.rglob("*.jsonl")}
    assert written == {"log.jsonl": ["controller", "rollout-0"], "logs/10.0.0.2.jsonl": ["rollout-1", "learner-0"],
                       "logs/10.0.0.3.jsonl": ["rollout-2"]}


def test_events_below_the_level_are_not_logged(tmp_path: Path):
    logs.configure_logs(tmp_path, process="cli", show=None)
    logs.get_logger("x").debug("quiet")
    assert not (tmp_path / "log.jsonl").exists()


def test_an_actors_life_is_told_from_its_start_to_the_fault_that_ended_it(tmp_path: Path):
    def live() -> None:
        with logs.life_of("rollout-0", tmp_path, node="127.0.0.1") as log:
            log.info("engine ready", seconds=2.5)
            raise EngineFault("out of memory")

    with pytest.raises(EngineFault, match="out of memory"):
        live()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["process"], line["event"]) for line in lines] == [
        ("rollout-0", "started"), ("rollout-0", "engine ready"), ("rollout-0", "ended")]
    assert lines[0]["pid"] == os.getpid()
    assert (lines[2]["level"], lines[2]["fault"]) == ("error", "EngineFault: out of memory")
    assert "Traceback" in lines[2]["exception"]


def test_a_folder_that_this_node_does_not_see_is_not_started(tmp_path: Path):
    with logs.life_of("rollout-0", tmp_path / "elsewhere", node="10.0.0.2") as log:
        log.info("engine ready")
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_without_a_log_is_silent(capsys: pytest.CaptureFixture[str]):
    structlog.reset_defaults()
    logs.get_logger("worker").warning("episode failed")
    assert capsys.readouterr() == ("", "")


OUTAGES = """
import pathlib, resource, sys
from services.telemetry.logs import configure_logs, get_logger
folder = pathlib.Path(sys.argv[1])
configure_logs(folder, show=None)
log, (size, hard) = get_logger("x"), resource.getrlimit(resource.RLIMIT_FSIZE)
log.info("first")
for outage in "12":
    room = (folder / "log.jsonl").stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    log.error(f"cut short {outage}", exc_info=ValueError("no such group"))
    log.error(f"refused {outage}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    log.info("next")
"""


def test_a_full_disk_is_told_once_and_a_line_that_it_cut_short_is_not_glued_to_the_next(tmp_path: Path):
    """A limit on the size of files has the effect of a full disk. Each line was told, with kilobytes of traceback."""
    done = subprocess.run([sys.executable, "-c", OUTAGES, str(tmp_path)], stderr=subprocess.PIPE, text=True, timeout=60,
                          check=True)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in (lines[0], lines[-1])] == ["first", "next"]
    printed = done.stderr.splitlines()
    assert [line.partition("error: ")[2] for line in printed] == ["cut short 1", "cut short 2"]
    assert all(line.startswith(f"{tmp_path}/log.jsonl cannot be written (No space left on device), so lines are lost: ")
               for line in printed)
