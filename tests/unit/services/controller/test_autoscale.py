"""More processes if work waits, fewer if one less is enough, always within the bounds."""

import pytest

from services.config.sections import AutoscaleSection
from services.controller.autoscale import EnvironmentLoad, RolloutLoad, environment_servers, rollout_workers

RULES = AutoscaleSection(rollout=(1, 6), env=(2, 8), ticket_wait_seconds=30, session_fill=0.8, request_seconds=1)


@pytest.mark.parametrize(("now", "wait", "playing", "wanted"), [
    (2, 45, 8, 3),   # 2 x 1.5
    (2, 300, 8, 4),  # at most twice as many
    (4, 300, 16, 6),  # the upper bound
    (3, 1, 8, 2),    # two workers have eight slots
    (3, 1, 9, 3),    # nine episodes were in play at once
    (3, 20, 4, 3),   # tickets wait for more than half of the target
    (1, 0, 0, 1),    # the lower bound
])
def test_rollout_workers_follow_the_wait_of_tickets(now, wait, playing, wanted):
    load = RolloutLoad(episodes=10, wait_seconds=wait, most_playing=playing, slots=4)
    assert rollout_workers(now, load, RULES) == wanted


@pytest.mark.parametrize(("now", "load", "wanted"), [
    (2, {"fill": 0.9}, 3),
    (2, {"seconds": 3}, 4),
    (3, {"refused": 1}, 6),
    (5, {"refused": 1}, 8),
    (4, {"fill": 0.2, "seconds": 0.1}, 3),
    (4, {"fill": 0.4, "seconds": 0.1}, 4),
    (2, {"fill": 0.0}, 2),
])
def test_environment_servers_follow_sessions_latency_and_refusals(now, load, wanted):
    seen = EnvironmentLoad(**{"requests": 10, "seconds": 0.0, "fill": 0.5, "refused": 0} | load)
    assert environment_servers(now, seen, RULES) == wanted


def test_nothing_changes_while_nothing_is_played():
    idle = RolloutLoad(episodes=0, wait_seconds=0, most_playing=0, slots=4)
    assert rollout_workers(3, idle, RULES) == 3
    assert rollout_workers(9, idle, AutoscaleSection()) == 9


@pytest.mark.parametrize("bounds", [(0, 2), (3, 2)])
def test_bounds_in_the_wrong_order_are_refused(bounds):
    with pytest.raises(ValueError, match="the smaller one first"):
        AutoscaleSection(rollout=bounds)
