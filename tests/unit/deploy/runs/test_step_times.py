"""Where the seconds of learner steps went: shares that add up to the wall time."""

import pytest

from deploy.runs.step_times import as_line, step_times, whole_percents
from services.telemetry.metrics_file import parse_row

ROWS = [
    {"step": 1, "step_seconds": 20.0, "seconds/wait": 10.0, "seconds/evaluation": 0.0, "seconds/forward_backward": 5.0,
     "seconds/optimizer": 1.0, "seconds/publish": 2.0, "seconds/credit": 0.5, "seconds/pack": 0.5,
     "seconds/checkpoint": 0.0, "tokens_sampled": 300, "tokens_trained": 3000},
    {"step": 2, "step_seconds": 30.0, "seconds/wait": 10.0, "seconds/evaluation": 7.0, "seconds/forward_backward": 5.0,
     "seconds/optimizer": 1.0, "seconds/publish": 2.0, "seconds/credit": 0.5, "seconds/pack": 0.5,
     "seconds/checkpoint": 3.0, "tokens_sampled": 200, "tokens_trained": 2000}]


def test_the_parts_of_a_step_add_up_to_its_wall_time():
    """50 s in two steps. The rest: 2 s of credit and pack, 3 s of a checkpoint, and 2 s that no phase counts."""
    times = step_times(ROWS)
    assert times.seconds == {"sampling": 10.0, "evaluation": 3.5, "passes": 5.0, "optimizer": 1.0, "publishing": 2.0,
                             "rest": 3.5}
    assert (times.steps, times.wall, times.sampled, times.trained) == (2, 25.0, 10.0, 100.0)
    assert as_line(times) == ("25 s a step: sampling 40%, evaluation 14%, passes 20%, optimizer 4%, publishing 8%, "
                              "rest 14%; 10 tokens/s sampled, 100 trained")


def test_a_row_of_an_older_version_has_the_time_of_its_phases():
    older = {key: value for key, value in ROWS[1].items() if key not in ("step_seconds", "seconds/evaluation")}
    assert step_times([older]).seconds == {"sampling": 10.0, "evaluation": 0.0, "passes": 5.0, "optimizer": 1.0,
                                           "publishing": 2.0, "rest": 4.0}


@pytest.mark.parametrize("rows", [[], [parse_row(b'{"step": 1}')], [{"step": 1, "seconds/wait": None}]])
def test_without_times_there_is_no_line(rows):
    assert step_times(rows) is None


@pytest.mark.parametrize(("amounts", "shares"), [
    ([1, 1, 1], [34, 33, 33]), ([0.5, 99.5], [1, 99]), ([2, 0], [100, 0]), ([1] * 6, [17, 17, 17, 17, 16, 16])])
def test_percents_add_up_to_a_hundred(amounts, shares):
    assert whole_percents(amounts) == shares
