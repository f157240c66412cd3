"""No JVM outlives its owner."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import gone

from envservice.scienceworld.simulator import MEMORY_BYTES, JavaConnection, JavaError, Program, Ref, Simulator

OWNER = """
import sys, time
from envservice.scienceworld.simulator import find_program
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


@pytest.fixture
def wire(simulator: Simulator) -> JavaConnection:
    return simulator.wire


@pytest.mark.parametrize("text", [
    "", "look", "two\nlines", "\r\n", "back\\slash\\n", "e", "\n", "ünïcode \u2028 \U0001F600", "x" * 100_000,
    "\0\t\x7f", "!x",
])
def test_strings_come_back_as_they_were_sent(wire: JavaConnection, text: str):
    assert wire.call("java.util.Objects", "toString", text) == text


def test_a_lone_surrogate_is_replaced(wire: JavaConnection):
    assert wire.call("java.util.Objects", "toString", "a\ud800b") == "a?b"


@pytest.mark.parametrize(("java_class", "method", "argument", "value"), [
    ("java.lang.Math", "abs", -7, 7), ("java.lang.Boolean", "toString", True, "true"),
    ("java.lang.Boolean", "parseBoolean", "false", False), ("java.lang.Double", "parseDouble", "1.5e-3", 0.0015),
    ("java.lang.System", "getProperty", "no.such", None), ("java.lang.Long", "parseLong", "9000000000", 9_000_000_000),
])
def test_values_by_type(wire: JavaConnection, java_class: str, method: str, argument: str | int, value: object):
    result = wire.call(java_class, method, argument)
    assert result == value
    assert type(result) is type(value)


def test_a_value_that_cannot_be_sent_raises_a_programming_error(wire: JavaConnection):
    with pytest.raises(ValueError, match=r"no way to send 1\.5"):
        wire.call("java.lang.Math", "abs", 1.5)


def test_objects_are_kept_until_they_are_released(wire: JavaConnection):
    items = wire.new("java.util.ArrayList")
    assert isinstance(items, Ref)
    assert wire.call(items, "add", "a") is True
    assert wire.call(items, "size") == 1
    wire.release(items)
    with pytest.raises(JavaError):
        wire.call(items, "size")


def test_an_exception_of_java_is_one_of_ours_and_the_connection_goes_on(wire: JavaConnection):
    with pytest.raises(JavaError, match="parseInt"):
        wire.call("java.lang.Integer", "parseInt", "seven")
    assert wire.call("java.lang.Integer", "parseInt", "7") == 7


def port_of(wire: JavaConnection) -> int:
    return wire._socket.getpeername()[1]


def test_without_the_token_nobody_calls_anything(wire: JavaConnection):
    with pytest.raises(JavaError, match="Authentication"):
        JavaConnection(wire.port, "guessed", deadline_s=10)


def test_a_call_has_a_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        since = time.monotonic()
        with pytest.raises(JavaError, match="timed out"):
            JavaConnection(silent.getsockname()[1], "token", deadline_s=0.2)
        assert time.monotonic() - since < 20


def test_a_port_without_a_java_gateway_is_an_error():
    with pytest.raises(JavaError, match="no gateway on port 1"):
        JavaConnection(1, "token", deadline_s=1)


def test_an_answer_that_is_cut_short_is_an_error():
    """A JVM that is killed may have sent the beginning of a line."""
    def serve() -> None:
        connection, _ = gateway.accept()
        with connection:
            for answer in (b"!yv\n", b"!ysThe sto"):
                connection.recv(4096)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as gateway:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        wire = JavaConnection(gateway.getsockname()[1], "token", deadline_s=10)
        with pytest.raises(JavaError, match="the JVM has ended"):
            wire.call("world", "look")
        serving.join(10)
