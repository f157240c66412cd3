"""The rule by which a cold start on ranks writes its states."""

from learner.cold_start.states import is_due


def test_a_state_is_written_after_a_minute_but_for_at_most_a_twentieth_of_the_time():
    assert [is_due(seconds, 0.5) for seconds in (0.0, 59.9, 60.0)] == [False, False, True]
    assert [is_due(seconds, 30.0) for seconds in (60.0, 599.9, 600.0)] == [False, False, True]
