"""Helpers for browser tests of the explorer."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager


@contextmanager
def explored(*runs):
    """Starts the explorer by its command, yields its address, and ends it by Ctrl-C, which is no error."""
    process = subprocess.Popen([sys.executable, "-m", "deploy.cli", "explore", *map(str, runs), "--port", "0"],
                               text=True, stdout=subprocess.PIPE)
    try:
        said = iter(process.stdout.readline, "")
        yield next(found[1] for line in said if (found := re.search(r"(http://\S+?)/?$", line.strip())))
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
    assert status == 0


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def press(browser, keys):
    browser.find_element("tag name", "body").send_keys(keys)
