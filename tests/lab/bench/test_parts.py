"""Progress of a bench with unlike parts."""

import io
import threading
import time

from rich.console import Console

from deploy.console.plain import StatusLines
from lab.bench.parts import Parts


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=100, color_system=None)


def test_unlike_parts_have_no_time_left_and_a_silent_one_says_how_long_it_took():
    """The first of two parts takes a second, which says nothing about the second part. That one is silent for 25 s."""
    out, clock = console(), Clock()
    with StatusLines(out) as lines, Parts(lines, "bench webshop", every_s=0.05, clock=clock) as parts:
        parts.at("pages", 0, 2)
        clock.now = 1.0
        parts.at("ranking", 1, 2)
        for clock.now in (11.0, 26.0):
            end, known = time.monotonic() + 120, len(out.file.getvalue())
            while len(out.file.getvalue()) == known:
                assert time.monotonic() < end
                time.sleep(0.01)
    lines = out.file.getvalue().splitlines()
    lines = [line for line in lines if line != "bench webshop 0/2 parts  pages  1 s so far"]  # if a look came between
    assert lines == [
        "bench webshop 0/2 parts  pages", "bench webshop 1/2 parts  ranking  1 s so far",
        "bench webshop 1/2 parts  ranking  11 s so far", "bench webshop 1/2 parts  ranking  26 s so far"]


def test_parts_stop_to_speak_when_they_are_done():
    out = console()
    with StatusLines(out) as lines, Parts(lines, "bench", every_s=0.01, clock=lambda: 0.0) as parts:
        parts.at("it", 0, 1)
    said = out.file.getvalue()
    time.sleep(0.05)
    assert out.file.getvalue() == said
    assert "parts" not in {thread.name for thread in threading.enumerate()}
