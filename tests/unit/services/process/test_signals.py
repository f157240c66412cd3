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
    time.sleep(600)

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
RENAMED = """
    try:
        wait()
    except SystemExit:
        print("cleaned")
        sys.exit(1)
"""
"""Ray does this where it waits."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("body", [SWALLOWED, SLOW, SUSPENDED, RENAMED],
                         ids=["swallowed", "slow", "suspended", "renamed"])
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


def test_a_second_request_ends_the_cleaning_up():
    process = subprocess.Popen([sys.executable, "-c", COMMAND.format(body="""
    try:
        wait()
    finally:
        print("cleaning", flush=True)
        time.sleep(600)
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
