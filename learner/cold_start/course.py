"""The order in which the cold start sees its rows: demonstrations, in turns with lessons that come as it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from learner.cold_start.sft_data import Batch, TokenRow, batches

Lesson = Callable[[], Sequence[TokenRow]]
"""Makes rows when it is called: what the policy needs to learn depends on what it does by then."""


class Course:
    """Batches without end. The k-th of n lessons is given once k / (n + 1) of the training is over.

    From the first lesson on, batches of demonstrations alternate with batches of all lessons so far: lessons are few
    rows beside the demonstrations, and would rarely be drawn from one heap.
    """

    def __init__(self, rows: Sequence[TokenRow], lessons: Sequence[Lesson] = (), *, batch_rows: int, pad_id: int,
                 seed: int) -> None:
        """Raises ValueError if there are no rows."""
        if not rows:
            raise ValueError("no demonstrations to train on")
        self.rows = rows
        self._lessons = list(lessons)
        self._share = len(self._lessons) + 1
        self._given: list[TokenRow] = []
        self._stream = lambda some: batches(some, batch_rows=batch_rows, pad_id=pad_id, seed=seed)
        self._streams: list[Iterator[Batch]] = [self._stream(rows)]
        self._turn = 0

    def batch(self, spent: float) -> Batch:
        """Returns the next batch, when the share `spent` in [0, 1] of the training is over."""
        while self._lessons and spent >= 1 - len(self._lessons) / self._share:
            self._given.extend(self._lessons.pop(0)())
            if self._given:
                self._streams[1:] = [self._stream(self._given)]
        self._turn += 1
        return next(self._streams[self._turn % len(self._streams)])
