"""The speeds of a run's processes in `gagpo status`: rates between two heartbeats, and the lines that show them."""

from __future__ import annotations

import pytest
from heartbeats import learner, worker

from deploy.commands.status import speed, table
from deploy.runs.live_status import Seen, rate
from services.telemetry.heartbeat import Beat


def test_a_rate_is_over_the_time_between_two_heartbeats_by_their_own_clock():
    assert rate(worker(110.0, 4000.0), worker(100.0, 1000.0)) == (300.0, "tokens/s")


def test_no_rate_is_known_of_one_look_of_a_repeated_one_and_across_a_restart():
    for before in (None, worker(110.0, 4000.0), worker(100.0, 5000.0)):
        assert rate(worker(110.0, 4000.0), before) is None


def test_a_learners_rate_is_the_mean_seconds_of_its_steps():
    assert rate(learner(4), None) == (7.5, "s a step")
    assert rate(learner(0), None) is None


def test_a_rate_stays_until_the_next_heartbeat_and_goes_with_its_process():
    seen = Seen()
    for at, tokens in ((100.0, 0.0), (102.0, 600.0), (102.0, 600.0)):
        seen.take({"rollout-0": worker(at, tokens)})
    assert seen.rate("rollout-0") == (300.0, "tokens/s")
    seen.take({"rollout-1": worker(104.0, 5.0)})
    assert (set(seen.now), seen.before) == ({"rollout-1"}, {})


@pytest.mark.parametrize(("tokens", "said"), [
    (25.0, "12.5 tokens/s"), (24690.0, "12,345 tokens/s"), (0.0, "0 tokens/s")])
def test_speeds_are_said_with_their_unit(tokens, said):
    seen = Seen(now={"w": worker(102.0, tokens)}, before={"w": worker(100.0, 0.0)})
    assert speed(seen, "w") == said


def test_the_first_rank_of_the_learner_stands_for_all():
    seen = Seen(now={"learner-0": learner(4)})
    assert table(seen, ranks=4)[1].split()[:2] == ["learner-0..3", "1.3"]
    assert table(seen)[1].split()[0] == "learner-0"


def test_a_process_that_dies_again_and_again_has_a_line():
    driver = Beat(role="controller", doing="training", since=0.0, progress=0.0, metrics={},
                  sick=("rollout worker 1 died 4 times in 10 minutes, last: killed; starts again in 4 s",))
    assert table(Seen(now={"controller": driver}))[2] == (
        "  sick: rollout worker 1 died 4 times in 10 minutes, last: killed; starts again in 4 s")
