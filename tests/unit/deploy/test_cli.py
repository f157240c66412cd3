"""How the command line reports mistakes, faults and signals."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy import cli
from services.errors import EngineFault, Fault, UserError
from services.telemetry.logs import configure_logs


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Registers a command `work` that runs the given function, in the place of an earlier one."""
    shipped = cli.COMMANDS

    def install(run, **defaults: object) -> None:
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--fast", action="store_true")
            parser.set_defaults(**defaults)

        work = SimpleNamespace(__name__="work", __doc__="Works.", add_arguments=add_arguments, run=run)
        monkeypatch.setattr(cli, "COMMANDS", (*shipped, work))
    return install


def raising(error: BaseException):
    def run(args: argparse.Namespace) -> int:
        raise error
    return run


@pytest.mark.parametrize(("argv", "line"), [
    (["doctr"], "error: there is no command 'doctr'; did you mean `gagpo doctor`?"),
    (["zzzzzz"], "error: there is no command 'zzzzzz'; see `gagpo --help`"),
    ([], "error: no command is given; see `gagpo --help`"),
    (["doctor", "--jsn"], "error: unrecognised argument --jsn; did you mean --json?"),
    (["doctor", "extra"], "error: unrecognised argument extra; see `gagpo doctor --help`"),
    (["credit", "1.jsonl", "2.jsonl"], "error: unrecognised argument 2.jsonl; see `gagpo credit --help`"),
    (["export"], "error: the following arguments are required: RUN, OUT; see `gagpo export --help`"),
    (["bench", "credit"], "error: `gagpo bench` has moved; use `python -m lab.bench` in a clone of the repository"),
])
def test_a_mistake_is_one_line_and_exit_2(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(argv) == 2
    assert capsys.readouterr().err == line + "\n"


def test_a_command_without_a_status_succeeds(command):
    command(lambda args: None)
    assert cli.main(["work"]) == 0


def test_overrides_may_stand_after_options(command):
    seen = []
    command(lambda args: seen.append(args.overrides), overrides=[])
    assert cli.main(["work", "--fast", "a=1"]) == 0
    assert seen == [["a=1"]]


def test_a_users_error_is_one_line_with_what_is_wrong_and_the_fix(command, capsys: pytest.CaptureFixture[str]):
    command(raising(UserError("no model\nhere", "give another")))
    assert cli.main(["work"]) == 2
    assert capsys.readouterr().err == "error: no model here; give another\n"


def test_each_of_several_mistakes_is_a_line(capsys: pytest.CaptureFixture[str]):
    given = ["steps=0", "learner.learning_rate=1", "rollout.slots=0"]
    assert cli.main(["train", "--config", "alfworld-tiny", *given]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "error: unknown key learner.learning_rate in the command line", "error: steps cannot be 0",
        "error: rollout.slots cannot be 0"]


@pytest.mark.parametrize(("fault", "said"), [
    (EngineFault("sampler died"), "error: engine fault: sampler died; the traceback is above"),
    (Fault("no progress"), "error: run fault: no progress; the traceback is above")])
def test_a_fault_names_its_boundary_and_leaves_its_traceback(
        command, capsys: pytest.CaptureFixture[str], fault: Fault, said: str):
    command(raising(fault))
    assert cli.main(["work"]) == 1
    *trace, last = capsys.readouterr().err.strip().splitlines()
    assert last == said
    assert any("Traceback" in line for line in trace)


def test_with_a_log_the_traceback_goes_there(command, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    configure_logs(tmp_path, show=None)
    command(raising(EngineFault("sampler died")))
    assert cli.main(["work"]) == 1
    log = tmp_path / "log.jsonl"
    assert capsys.readouterr().err == f"error: engine fault: sampler died; the traceback is in {log}\n"
    assert "EngineFault: sampler died" in json.loads(log.read_text())["exception"]


def test_with_a_log_on_a_full_disk_the_traceback_is_printed(command, tmp_path: Path,
                                                            capsys: pytest.CaptureFixture[str]):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    configure_logs(tmp_path, show=None)
    command(raising(EngineFault("sampler died")))
    assert cli.main(["work"]) == 1
    lost, *trace, last = capsys.readouterr().err.splitlines()
    assert lost.startswith(f"{tmp_path}/log.jsonl cannot be written (No space left on device), so lines are lost: ")
    assert trace[0].startswith("Traceback")
    assert last == "error: engine fault: sampler died; the traceback is above"


def test_an_exception_that_ray_wrapped_is_reported_as_it_was_raised(command, capsys: pytest.CaptureFixture[str]):
    """Ray raises a class of both kinds whose text is a whole traceback and whose cause is the original."""
    from ray.exceptions import RayTaskError

    def wrapped(cause: Exception) -> Exception:
        return RayTaskError("train", "Traceback ...", cause).as_instanceof_cause()

    command(raising(wrapped(UserError("no model", "give one"))))
    assert cli.main(["work"]) == 2
    assert capsys.readouterr().err == "error: no model; give one\n"
    command(raising(wrapped(EngineFault("sampler died"))))
    assert cli.main(["work"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: engine fault: sampler died; ")


def test_ctrl_c_is_130(command):
    command(raising(KeyboardInterrupt()))
    assert cli.main(["work"]) == 130


NAP = "import time\ndef nap():\n    while True: time.sleep(0.1)\n"
"""Waits in short calls: Python handles a signal that comes just before a call of C when that call ends."""


def start_sleeper(*prefix: str) -> subprocess.Popen[str]:
    """Starts a command that waits in its own process and prints what it cleans up."""
    code = (
        f"{NAP}from deploy import cli\n"
        "def run(args):\n"
        "    try:\n        print('ready', flush=True); nap()\n"
        "    finally:\n        print('cleaned', flush=True)\n"
        "raise SystemExit(cli.run_guarded(lambda: run(None)))\n"
    )
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_kill_cleans_up(number: signal.Signals):
    process = start_sleeper()
    try:
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == "cleaned\n"
        assert process.returncode == 128 + number
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_comes_inside_a_finalizer_is_not_lost(number: signal.Signals, status: int):
    """Python prints exceptions of `__del__` and goes on. The imports of the heavy commands run thousands of such
    calls.
    """
    code = (
        f"{NAP}from deploy import cli\n"
        "class Slow:\n"
        "    def __del__(self): print('ready', flush=True); nap()\n"
        "def run(args):\n"
        "    try:\n        Slow(); time.sleep(600)\n"
        "    finally:\n        print('cleaned', flush=True)\n"
        "raise SystemExit(cli.run_guarded(lambda: run(None)))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("cleaned\n", "error: interrupted\n" if status == 130 else "")
        assert process.returncode == status
    finally:
        process.kill()
        process.wait()


def test_under_nohup_a_closed_terminal_ends_nothing():
    process = start_sleeper("nohup")
    try:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.wait()


def test_a_reader_that_leaves_is_no_traceback():
    read, write = os.pipe()
    code = (
        "import sys, time\nfrom deploy import cli\n"
        "def run(args):\n    time.sleep(0.5); print('x' * 100000)\n"
        "raise SystemExit(cli.run_guarded(lambda: run(None)))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    os.close(read)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 141


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stderr_does_not_change_the_status(unbuffered: str):
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([sys.executable, "-m", "deploy.cli", "doctr"], stderr=full, timeout=60, check=False,
                                 env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    assert process.returncode == 2


@pytest.mark.parametrize("characters", [1, 100_000])
def test_a_full_disk_behind_stdout_is_one_line(characters: int):
    """The interpreter's last flush of what is left told of it again, and changed the status to 120."""
    code = ("from deploy import cli\n"
            f"def run(args): print('x' * {characters})\n"
            "raise SystemExit(cli.run_guarded(lambda: run(None)))\n")
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True,
                                 env=os.environ | {"PYTHONUNBUFFERED": ""}, timeout=60, check=False)
    assert process.stderr == "error: No space left on device; make room on the disk that the command writes to\n"
    assert process.returncode == 1


def test_a_file_over_the_limit_of_its_size_is_one_line_that_names_the_limit(tmp_path: Path):
    code = ("import resource\nfrom deploy import cli\n"
            f"def run(args): open({str(tmp_path / 'report')!r}, 'wb', buffering=0).write(b'x')\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
            "raise SystemExit(cli.run_guarded(lambda: run(None)))\n")
    process = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert process.stderr == "error: File too large; raise the limit of a file's size (`ulimit -f`)\n"
    assert process.returncode == 2


def test_a_locale_without_utf_8_prints_all_help():
    """Its characters are those of a locale such as en_US.ISO-8859-1; ascii has still fewer."""
    for command in (["credit", "--help"], ["train", "--help"]):
        process = subprocess.run([sys.executable, "-m", "deploy.cli", *command], stdout=subprocess.PIPE, timeout=60,
                                 env=os.environ | {"PYTHONIOENCODING": "ascii"}, check=False)
        assert process.returncode == 0
        assert b"usage: gagpo" in process.stdout


def test_a_name_that_the_locale_cannot_write_is_one_line(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("base: alfworld-tiny\nruns_dir: läufe\n", encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "train", "--config", "config.yaml", "--dry-run"], cwd=tmp_path, timeout=60,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}, capture_output=True, check=False)
    assert process.returncode == 2
    assert process.stderr.decode() == ("error: 'l\\xe4ufe/alfworld-tiny/run.json' cannot name a file where names are "
                                       "ascii; set PYTHONUTF8=1\n")


def test_skip_step_asks_for_resume(capsys):
    assert cli.main(["train", "--config", "alfworld-tiny", "--skip-step", "3"]) == 2
    assert "give --resume with it" in capsys.readouterr().err
