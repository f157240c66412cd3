"""No JVM outlives its owner."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import gone

from envservice.scienceworld.installation import Program
from envservice.scienceworld.simulator import MEMORY_BYTES, Simulator
from envservice.scienceworld.wire import JavaError

OWNER = """
import sys, time
from envservice.scienceworld.installation import find_program
from envservice.scienceworld.simulator import Simulator
simulator = Simulator(find_program())
simulator.load("boil", 0, "easy")
print(simulator.pid, flush=True)
time.sleep(600)
"""


def ends(pid: int, within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while not gone(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return gone(pid)


def test_it_ends_when_it_is_told_to_and_when_it_is_forgotten(program: Program):
    one = Simulator(program)
    assert not gone(one.pid)
    one.end()
    assert gone(one.pid)
    one.end()
    with pytest.raises(JavaError):
        one.task()
    other = Simulator(program)
    pid = other.pid
    del other
    gc.collect()
    assert gone(pid)


def test_it_ends_with_an_owner_who_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline() or 0)
    if not pid:
        pytest.skip("the simulator does not run here")
    assert not gone(pid)
    owner.kill()
    owner.wait(timeout=60)
    assert ends(pid)
    owner.stdout.close()


def test_a_jvm_that_dies_is_an_error_and_no_hang(program: Program):
    one = Simulator(program)
    one.load("boil", 0, "easy")
    os.kill(one.pid, 9)
    with pytest.raises(JavaError):
        one.step("look around")
    one.end()


def test_a_java_that_does_not_start_is_an_error(program: Program, tmp_path: Path):
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    for java, complaint in ((str(broken), "ended at its start"), (str(tmp_path / "none"), "does not start")):
        with pytest.raises(JavaError, match=complaint):
            Simulator(Program(java=java, jar=program.jar, gateway=program.gateway))


def test_an_unknown_task_is_an_error(simulator: Simulator):
    with pytest.raises(JavaError, match="Unknown task"):
        simulator.load("brew", 0, "easy")


def test_it_leaves_no_file_behind_and_stays_within_its_memory(simulator: Simulator, program: Program):
    before = sorted((file.name, file.stat().st_mtime_ns) for file in program.folder.iterdir() if file.is_file())
    for name in ("chemistry-mix", "mendelian-genetics-known-plant"):
        simulator.load(name, 0, "")
        for action in ("look around", "open door to hallway", "go to hallway", "wait"):
            assert simulator.step(action)
        assert len(simulator.valid_actions()) > 20
    assert sorted((file.name, file.stat().st_mtime_ns) for file in program.folder.iterdir() if file.is_file()) == before
    status = Path(f"/proc/{simulator.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) * 1024 < MEMORY_BYTES
