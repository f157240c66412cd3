"""CPU seconds that are counted for telemetry."""

import time

from services.telemetry.overhead import counted, spent


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_part_gets_the_cpu_time_of_its_calls_and_none_of_their_waiting():
    before = spent()

    @counted("archive")
    def work() -> str:
        time.sleep(0.2)
        burn(0.02)
        return "done"

    assert work() == "done"
    after = spent()
    assert 0.02 <= after["archive"] - before["archive"] < 0.15
    assert after["cpu"] - before["cpu"] >= 0.02


def test_a_part_within_another_counts_once_for_the_outer_one():
    before = spent()

    @counted("logs")
    def inner() -> None:
        burn(0.02)

    @counted("metrics")
    def outer() -> None:
        inner()

    outer()
    after = spent()
    assert after["metrics"] - before["metrics"] >= 0.02
    assert after["logs"] == before["logs"]


def test_time_is_counted_also_if_the_counted_function_raises():
    before = spent()

    @counted("logs")
    def fail() -> None:
        burn(0.01)
        raise ValueError

    for _ in range(2):
        try:
            fail()
        except ValueError:
            continue
    assert spent()["logs"] - before["logs"] >= 0.02
