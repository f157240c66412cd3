"""Nothing outlives a parent that was killed, and a fork of a server's process lets go of the server alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from processes import gone
from waiting import wait_until

from services.errors import DeadlineExceeded
from services.http.server import bind
from services.process.child_processes import ending_with_parent, wait_or_kill
from services.process.forks import forks_apart

PARENT = """
import subprocess, sys, time
from services.process.child_processes import ending_with_parent
child = subprocess.Popen(ending_with_parent(["sleep", "600"]), start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_ends_with_a_parent_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        wait_until(lambda: child.name() == "sleep")  # before that it would see for itself that its parent is gone
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(child.pid))


def test_a_child_that_cannot_be_killed_is_named():
    """As one that waits for a disk which is gone: the kernel ends it only once that disk answers."""
    class Unkillable(subprocess.Popen):
        def kill(self) -> None:
            """Nothing."""

    with Unkillable(["sleep", "60"]) as child:
        with pytest.raises(DeadlineExceeded, match=rf"process {child.pid} has not ended 0.05 s after SIGKILL"):
            wait_or_kill(child, 0.05)
        child.send_signal(signal.SIGKILL)


def test_no_python_of_ours_runs_between_fork_and_exec():
    """It crashed now and then in a process with threads, in the middle of the restart of a Redis."""
    root = Path(__file__).parents[4]
    paths = [path for folder in ("services", "learner", "rollout", "envservice", "deploy")
             for path in (root / folder).rglob("*.py") if "preexec_fn=" in path.read_text()]
    assert paths == []


def test_the_command_gets_its_words_its_descriptors_and_the_usual_signals():
    read, write = os.pipe()
    script = "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode())"
    shell = ["sh", "-c", "kill -PIPE $$; echo survived"]
    command = ending_with_parent([sys.executable, "-c", script, str(write), "a word"])
    with subprocess.Popen(command, pass_fds=[write]) as child:
        os.close(write)
        assert os.read(read, 100) == b"a word"
        assert child.wait(60) == 0
    os.close(read)
    assert subprocess.run(ending_with_parent(shell), stdout=subprocess.PIPE, check=False).returncode == -signal.SIGPIPE


FORKING = """
import os, signal, time
from functools import partial
from services.process.child_processes import end_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.register_at_fork(after_in_child=partial(end_with_parent, signal.SIGKILL))
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_fork_is_killed_with_its_parent():
    """Both ignore SIGTERM, as code of others may."""
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([child], timeout=120)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)

FORK = multiprocessing.get_context("fork")


def _in_a_fork(call: Callable[[], object]) -> object:
    """Returns what `call` returns in a fork of this process."""
    end, other = FORK.Pipe()
    child = FORK.Process(target=lambda: other.send(call()))
    child.start()
    try:
        assert end.poll(60)
        return end.recv()
    finally:
        child.join(60)


def test_a_fork_holds_neither_the_listener_nor_a_connection_of_the_server():
    """The client waited for a connection that the server had closed, because the child still had it open."""
    listener = bind("127.0.0.1", 0)
    address = listener.getsockname()
    with socket.create_connection(address, 60) as client, forks_apart(listener):
        accepted, _ = listener.accept()
        child = FORK.Process(target=time.sleep, args=(60,))
        child.start()
        try:
            accepted.close()
            assert client.recv(1) == b""
            listener.close()
            bind(*address).close()
            assert child.is_alive()
        finally:
            child.kill()
            child.join(60)


def test_a_fork_keeps_the_sockets_that_are_not_of_the_server():
    with bind("127.0.0.1", 0) as listener, bind("127.0.0.1", 0) as other, forks_apart(listener):
        kept = _in_a_fork(lambda: (other.getsockname(), listener.fileno() >= 0))
        assert kept == (other.getsockname(), True)


@pytest.fixture
def handled():
    """Yields the signals that handlers of this process have heard. SIGHUP is ignored, as nohup does."""
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_fork_ends_by_a_signal_that_it_gets_at_once(handled: list[int]):
    """Python clears signals that come before the child runs. The wakeup descriptor is shared with the parent."""
    wakes, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakes, False)
    before = signal.set_wakeup_fd(wakeup)
    try:
        with bind("127.0.0.1", 0) as listener, forks_apart(listener):
            for _ in range(20):
                child = FORK.Process(target=time.sleep, args=(60,))
                child.start()
                child.terminate()
                child.join(30)
                assert child.exitcode == -signal.SIGTERM
    finally:
        signal.set_wakeup_fd(before)
    with pytest.raises(BlockingIOError):
        os.read(wakes, 1)
    assert not handled


def test_a_fork_goes_on_ignoring_what_its_parent_ignores(handled: list[int]):
    with bind("127.0.0.1", 0) as listener, forks_apart(listener):
        assert _in_a_fork(lambda: signal.getsignal(signal.SIGHUP)) is signal.SIG_IGN


def test_forks_after_the_server_are_left_alone(handled: list[int]):
    with bind("127.0.0.1", 0) as listener, forks_apart(listener):
        pass
    signals = _in_a_fork(lambda: callable(signal.getsignal(signal.SIGTERM)))
    assert signals is True


def test_a_fork_blocks_the_signals_that_its_parent_blocks_and_no_others():
    with bind("127.0.0.1", 0) as listener, forks_apart(listener):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            wanted = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            assert _in_a_fork(lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [])) == wanted
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == wanted
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
