"""Which ticket starts at which version, and which version comes next."""

import numpy as np

from rollout.version_policy import Missing, may_start, next_version, usable
from services.records import PlayedTurn, Ticket, Version, VersionSpan

OLD = Version(incarnation=1, step=4, digest="a")
NEW = Version(incarnation=1, step=5, digest="b")
RESTARTED = Version(incarnation=2, step=4, digest="c")


def train(min_step: int) -> Ticket:
    return Ticket(group="train/0", k=0, size=1, task="t", seed=0, kind="train", min_step=min_step, temperature=1.0,
                  max_steps=5)  # fmt: skip


def evaluation(version: Version) -> Ticket:
    return Ticket(group="eval/x", k=0, size=1, task="t", seed=0, kind="eval", exact_version=version, temperature=0.4,
                  max_steps=5)  # fmt: skip


def test_training_starts_from_its_lowest_step_on():
    """At least min_step: an older worker must update first."""
    assert may_start(train(4), OLD, OLD)
    assert may_start(train(4), NEW, NEW)
    assert not may_start(train(5), OLD, NEW)


def test_an_earlier_incarnation_is_never_trained_on():
    """After a restart of the learner, weights with a higher step of the dead one do not count."""
    assert not may_start(train(4), NEW, RESTARTED)
    assert may_start(train(4), RESTARTED, RESTARTED)


def turn(*versions: Version) -> PlayedTurn:
    return PlayedTurn(ids=np.zeros(1, np.int32), logprobs=np.zeros(1, np.float32), action="go", digest="d",
                      spans=[VersionSpan(version=version, start=0, end=1) for version in versions])


def test_turns_of_another_worker_count_as_long_as_their_versions_are_allowed():
    """Training: min_step to the worker's own step, of any incarnation. Evaluation: the one version. No gaps."""
    turns = [turn(OLD), turn(OLD, NEW), turn(NEW)]
    assert [len(usable(turns, ticket, own)) for ticket, own in (
        (train(4), NEW), (train(4), RESTARTED), (train(5), NEW))] == [3, 1, 0]
    assert len(usable([turn(NEW), turn(OLD), turn(NEW)], evaluation(NEW), NEW)) == 1


def test_evaluation_starts_at_its_own_version_only():
    """Neither older nor newer, and the digest counts."""
    assert may_start(evaluation(OLD), OLD, NEW)
    assert not may_start(evaluation(OLD), NEW, NEW)
    assert not may_start(evaluation(Version(incarnation=1, step=4, digest="z")), OLD, OLD)


def test_the_pointer_is_followed_while_training_is_in_flight():
    """An update does not wait for training episodes."""
    assert next_version(OLD, NEW, [train(4)], []) == NEW
    assert next_version(NEW, NEW, [train(4)], [train(6)]) == NEW


def test_no_update_while_an_evaluation_is_in_flight_or_about_to_start():
    """Its episodes are played at one version from the first to the last token."""
    assert next_version(OLD, NEW, [train(4), evaluation(OLD)], []) == OLD
    assert next_version(OLD, NEW, [], [evaluation(OLD)]) == OLD


def test_an_older_version_is_visited_once_training_is_done():
    """A worker that came late goes back for evaluation tickets, but never under running training episodes."""
    assert next_version(NEW, NEW, [train(5)], [evaluation(OLD)]) == NEW
    assert next_version(NEW, NEW, [], [evaluation(OLD), train(5)]) == OLD
    assert next_version(OLD, NEW, [], [train(5)]) == NEW


def test_weights_of_a_step_that_is_taken_again_wait_for_training_that_needs_newer_ones():
    """A restarted learner publishes its checkpoint first, and the groups that were sampled by it were dropped."""
    again = Version(incarnation=2, step=3, digest="e")
    assert next_version(NEW, again, [train(3), train(5)], []) == NEW
    assert next_version(NEW, again, [train(3)], []) == again
    assert next_version(NEW, again, [], [train(5)]) == again
    assert next_version(NEW, Version(incarnation=2, step=5, digest="f"), [train(5)], []).incarnation == 2


def test_the_oldest_visit_comes_first():
    """It is the one whose weights are forgotten next."""
    older = Version(incarnation=1, step=2, digest="d")
    assert next_version(NEW, NEW, [], [evaluation(OLD), evaluation(older)]) == older


def test_a_version_that_nobody_has_is_looked_for_every_five_seconds():
    """However long the learner takes to come back and publish it again."""
    now = [0.0]
    missing, version = Missing(clock=lambda: now[0]), Version(incarnation=2, step=7)
    assert not missing.pauses(version)
    missing.note(version)
    now[0] = 4.9
    assert missing.pauses(version)
    assert not missing.pauses(Version(incarnation=3, step=7))
    now[0] = 7200.0
    assert not missing.pauses(version)
    missing.note(version)
    assert missing.pauses(version)
