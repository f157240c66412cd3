"""A fork of a server's process lets go of the server, and of nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable

import pytest

from services.http.server import bind
from services.process.forks import forks_apart

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
