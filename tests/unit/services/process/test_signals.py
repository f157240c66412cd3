"""A command that hears SIGTERM leaves, whatever others do with the exception, and its cleaning up is left alone."""

import signal
import subprocess
import sys

import pytest

COMMAND = """
import sys, time
from services.process.signals import signals_unwind

def command():
{body}

def wait():
    print("ready", flush=True)
    while True:  # Python does not handle a signal that comes just before it calls C until that call ends
        time.sleep(0.1)

with signals_unwind():
    command()
"""
SWALLOWED = """
    try:
        wait()
    except:
        pass
    try:
        while True:
            time.sleep(0.1)
    finally:
        print("cleaned")
"""
"""Imports of libraries have such lines, and functions of C that clear whatever error they meet."""
SLOW = """
    try:
        wait()
    finally:
        time.sleep(2)
        try:
            raise OSError
        except OSError:
            time.sleep(2)
        print("cleaned")
"""
SUSPENDED = """
    import asyncio

    async def main():
        try:
            wait()
        finally:
            await asyncio.sleep(2)
            print("cleaned")

    asyncio.run(main())
"""
"""The exception is kept by the coroutine, and the event loop waits without one."""
COLLECTED = """
    class Collected:
        def __del__(self):
            wait()

    Collected()
    try:
        time.sleep(600)
    finally:
        time.sleep(2)
        print("cleaned")
"""
"""Python only prints an exception that leaves a `__del__`, and goes on."""
RENAMED = """
    try:
        wait()
    except SystemExit:
        print("cleaned")
        sys.exit(1)
"""
"""Ray does this where it waits."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("body", [SWALLOWED, SLOW, SUSPENDED, COLLECTED, RENAMED],
                         ids=["swallowed", "slow", "suspended", "collected", "renamed"])
def test_a_command_that_is_asked_to_leave_cleans_up_once_and_leaves(body: str, number: signal.Signals):
    process = subprocess.Popen([sys.executable, "-c", COMMAND.format(body=body)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.communicate(timeout=20) == ("cleaned\n", "")
        assert process.returncode == 128 + number
    finally:
        process.kill()
        process.wait()


def test_a_lost_signal_is_sent_again_once():
    """A second one would end the cleaning up. The main thread is busy, and gets no rest between two."""
    body = """
    sys.setswitchinterval(1e-6)
    class Collected:
        def __del__(self):
            wait()

    Collected()
    try:
        while True:
            pass
    finally:
        time.sleep(0.5)
        print("cleaned")
"""
    processes = [subprocess.Popen([sys.executable, "-c", COMMAND.format(body=body)], stdout=subprocess.PIPE, text=True)
                 for _ in range(12)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
            process.terminate()
        assert [process.communicate(timeout=60)[0] for process in processes] == ["cleaned\n"] * 12
        assert [process.returncode for process in processes] == [143] * 12
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_second_request_ends_the_cleaning_up():
    process = subprocess.Popen([sys.executable, "-c", COMMAND.format(body="""
    try:
        wait()
    finally:
        print("cleaning", flush=True)
        while True:
            time.sleep(0.1)
""")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "cleaning\n"
        process.terminate()
        assert process.wait(20) == 143
    finally:
        process.kill()
        process.wait()
