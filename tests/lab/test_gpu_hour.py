"""The script for an hour with a GPU, without one: its limits, its file of results, its status, and its own stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from lab import gpu_stages
from lab.gpu_hour import RESULTS, Job, drive
from lab.gpu_stages import STAGES, lines_of
from learner.selftest.run import CHECKS

ROOT = Path(__file__).parents[2]
TELLS = """
import sys, time
from pathlib import Path
from lab.gpu_stages import Line, record
def tell(claim, passed=None):
    record(Path(sys.argv[1]), "stage", Line(name=claim, value="1", passed=passed), 0.5)
"""


def job(script: str, *, limit_s: float = 60.0) -> Job:
    return Job(command=(sys.executable, "-c", TELLS + script), limit_s=limit_s)


def ends(pid: int) -> bool:
    """Whether a process ends within 30 s. In a container without an init process a zombie may stay."""
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def rows(out: Path) -> list[tuple[str, str, str]]:
    return [(row["stage"], row["claim"], row["verdict"]) for row in
            map(json.loads, (out / RESULTS).read_text().splitlines())]


def test_a_stage_that_hangs_is_stopped_with_its_children_and_what_it_found_stays(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hangs = job("""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
tell("before", True)
time.sleep(600)
""", limit_s=5)
    started = time.monotonic()
    assert drive({"hangs": hangs, "next": job("tell('after', True)")}, tmp_path) == 1
    assert time.monotonic() - started < 60
    assert rows(tmp_path) == [("stage", "before", "pass"), ("hangs", "ends in time", "FAIL"),
                              ("stage", "after", "pass")]
    assert ends(int((tmp_path / "hangs.log").read_text().split()[1]))
    assert "2 passed, 1 failed, 0 without a verdict" in capsys.readouterr().out


def test_a_stage_that_dies_is_a_failed_line_with_its_last_words(tmp_path: Path):
    assert drive({"dies": job("print('CUDA error 700', flush=True); import os; os.abort()")}, tmp_path) == 1
    (row,) = map(json.loads, (tmp_path / RESULTS).read_text().splitlines())
    assert (row["stage"], row["figure"], row["verdict"]) == ("dies", "status -6: CUDA error 700", "FAIL")


def test_a_failed_line_is_status_1_and_figures_alone_are_status_0(tmp_path: Path):
    assert drive({"figures": job("tell('a figure'); tell('a claim', True)")}, tmp_path) == 0
    assert drive({"fails": job("tell('a claim', False)")}, tmp_path) == 1
    assert drive({"figures": job("tell('a figure')")}, tmp_path) == 0, "lines of earlier calls stay and do not count"
    assert [verdict for *_, verdict in rows(tmp_path)] == ["-", "pass", "FAIL", "-"]


def test_stages_for_which_no_time_is_left_say_so_and_are_no_failure(tmp_path: Path):
    stages = {"long": job("time.sleep(600)"), "late": job("tell('late')")}
    assert drive(stages, tmp_path, total_s=1.0) == 0
    assert rows(tmp_path) == [("long", "cut short", "-"), ("late", "not run", "-")]


def test_a_driver_that_is_killed_leaves_what_was_found_and_no_stage(tmp_path: Path):
    script = f"""
import sys
from pathlib import Path
from lab.gpu_hour import Job, drive
stage = {TELLS + "print(__import__('os').getpid(), flush=True); tell('first', True); time.sleep(600)"!r}
drive({{"one": Job(command=(sys.executable, "-c", stage), limit_s=600)}}, Path({str(tmp_path)!r}))
"""
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert driver.stdout is not None
    assert driver.stdout.readline().startswith("pass stage")
    driver.kill()
    driver.communicate()
    assert rows(tmp_path) == [("stage", "first", "pass")]
    assert ends(int((tmp_path / "one.log").read_text()))


def test_a_stage_names_the_packages_that_it_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packages = ("torch", "no_such_package", "nor_this")
    monkeypatch.setattr(gpu_stages, "STAGES", {"engine": replace(STAGES["engine"], packages=packages)})
    (line,) = lines_of("engine", tmp_path)
    assert (line.value, line.passed) == ("not installed: no_such_package, nor_this", None)


def test_a_wrong_stage_is_told():
    done = subprocess.run([sys.executable, "-m", "lab.gpu_hour", "sampler"], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"there is no stage sampler; the stages are {', '.join(STAGES)}")


def test_the_learners_stages_name_checks_of_its_self_test():
    named = {check for stage in STAGES.values() if isinstance(stage.work, partial) for check in stage.work.args[0]}
    assert named == {"compile", "save", "parking", "offload", "candidates"}
    assert named <= {*CHECKS}


def test_without_a_gpu_the_learners_stages_run_at_a_tiny_size_and_the_others_say_so(tmp_path: Path):
    named = sorted({*STAGES} - {"save", "parking"})  # tests/unit/learner/test_selftest.py runs what these run
    done = subprocess.run(
        [sys.executable, "-m", "lab.gpu_hour", "--out", str(tmp_path), *named], cwd=ROOT, capture_output=True,
        text=True, timeout=280, check=False, env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / RESULTS).read_text().splitlines()]
    assert [row["stage"] for row in found if row["figure"] == "no GPU here"] == [
        "registrations", "compile", "segments", "candidates", "engine", "run"]
    passed = {(row["stage"], row["claim"]) for row in found if row["verdict"] == "pass"}
    assert passed >= {("packs", "128 tokens a pack: three steps"), ("ipc", "weights to another process"),
                      ("ipc", "changed weights"), ("ipc", "logprobs moved by the change")}
    assert len(done.stdout.splitlines()) == len(found) + 1
