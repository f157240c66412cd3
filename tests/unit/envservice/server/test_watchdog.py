"""When a server counts as hanging: looks are made by hand, without a clock."""

import asyncio
from collections.abc import Iterator

import pytest
from toy_environment import ToyEnvironment, solution

from envservice.server.sessions import SessionStore
from envservice.server.watchdog import LOOKS, Activity, Watchdog
from envservice.wire import StepRequest

TASK = "toy/train/00"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Lets the loop answer what it was asked."""
    loop.run_until_complete(asyncio.sleep(0))


def test_a_call_that_does_not_end_hangs(loop: asyncio.AbstractEventLoop):
    activity = Activity()
    watchdog = Watchdog(activity, loop, 120)
    with activity:
        for _ in range(LOOKS):
            assert not watchdog.look()
            turn(loop)
        line = watchdog.look()
    assert line.startswith("error: one call of the environment has not ended within 120 s, in _line (")
    assert line.endswith("raise env.call_seconds if calls take that long")
    assert "\n" not in line


def test_many_calls_do_not_hang_however_long_they_take_together(loop: asyncio.AbstractEventLoop):
    activity = Activity()
    watchdog = Watchdog(activity, loop, 120)
    for _ in range(3):
        with activity:
            for _ in range(LOOKS):
                assert not watchdog.look()
        activity.moves += 1
        turn(loop)
    for _ in range(3 * LOOKS):  # idle
        assert not watchdog.look()
        turn(loop)


def test_an_event_loop_that_does_not_answer_hangs(loop: asyncio.AbstractEventLoop):
    watchdog = Watchdog(Activity(), loop, 120)
    for _ in range(LOOKS):
        assert not watchdog.look()
    assert watchdog.look().startswith("error: the server's event loop has not run for 120 s")
    turn(loop)
    watchdog.look()
    turn(loop)
    assert not watchdog.look()


def test_each_call_of_a_replay_has_the_whole_time():
    """Else a long game could not be rebuilt where single steps take seconds."""
    store, actions = SessionStore(ToyEnvironment()), solution(TASK)
    digest = store.reset("e", TASK).digest
    for index, action in enumerate(actions[:-1]):
        digest = store.step(StepRequest(
            episode_id="e", task=TASK, actions=actions[:index], action=action, digest=digest)).digest
    other = SessionStore(ToyEnvironment())
    other.step(StepRequest(episode_id="e", task=TASK, actions=actions[:-1], action=actions[-1], digest=digest))
    assert other.activity.moves >= len(actions)
