"""The order of demonstrations and lessons."""

from itertools import pairwise

import numpy as np
import pytest

from learner.cold_start.course import Course
from learner.cold_start.sft_data import TokenRow


def rows(token: int, count: int = 4) -> list[TokenRow]:
    return [TokenRow(ids=np.array([token, token], dtype=np.int32), prompt_tokens=1)] * count


def source(batch) -> int:
    """The token of which a batch consists."""
    (token,) = set(batch.ids.flatten().tolist())
    return token


def course(*lessons) -> Course:
    return Course(rows(1), lessons, batch_rows=2, pad_id=0, seed=0)


def test_without_lessons_there_are_only_demonstrations():
    only = course()
    assert [source(only.batch(spent)) for spent in (0.0, 0.5, 1.0)] == [1, 1, 1]


def test_the_kth_of_n_lessons_is_given_when_k_parts_of_n_plus_one_are_over():
    given: list[float] = []
    now = 0.0

    def lesson() -> list[TokenRow]:
        given.append(now)
        return rows(2)

    taught = course(lesson, lesson, lesson)
    for percent in range(101):
        now = percent / 100
        taught.batch(now)
    assert given == [0.25, 0.5, 0.75]


def test_lessons_that_fell_due_together_are_all_given():
    taught = course(lambda: rows(2, 2), lambda: rows(3, 2))
    assert source(taught.batch(0.1)) == 1
    assert {int(token) for _ in range(8) for token in taught.batch(0.9).ids.flatten()} == {1, 2, 3}


def test_demonstrations_and_lessons_take_turns():
    taught = course(lambda: rows(2))
    after = [source(taught.batch(0.6)) for _ in range(6)]
    assert sorted(after) == [1, 1, 1, 2, 2, 2]
    assert all(left != right for left, right in pairwise(after))


def test_a_lesson_without_rows_changes_nothing():
    taught = course(lambda: [])
    assert [source(taught.batch(0.9)) for _ in range(3)] == [1, 1, 1]


def test_nothing_to_train_on_is_refused():
    with pytest.raises(ValueError, match="no demonstrations"):
        Course([], batch_rows=2, pad_id=0, seed=0)
