"""Which task a training group plays: all equally often, or more of the types that are both won and lost.

Each is a pure function of the run's seed and the group's index, a ContrastSampler also of the results of earlier steps.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

from services.seeds import seed_for
from services.telemetry.task_types import Rows, recent_results, type_weight


class TaskStream:
    """An endless sequence of training tasks. Each pass over the task set is a new permutation, fixed by the seed.

    Any index can be read directly, so a restarted controller continues at the next group that the store names.
    """

    def __init__(self, tasks: Sequence[str], seed: int) -> None:
        """Raises ValueError if there are no tasks."""
        if not tasks:
            raise ValueError("a task stream needs at least one task")
        self._tasks = list(tasks)
        self._seed = seed
        self._pass = -1
        self._order: list[str] = []

    def __len__(self) -> int:
        """Number of tasks of one pass."""
        return len(self._tasks)

    def __getitem__(self, index: int) -> str:
        number, position = divmod(index, len(self._tasks))
        if number != self._pass:
            self._order = list(self._tasks)
            random.Random(seed_for(self._seed, "pass", number)).shuffle(self._order)
            self._pass = number
        return self._order[position]


class MixedStream:
    """Several task streams as one, each with a share of the indices in proportion to its weight.

    An index goes to the stream that lacks most of its share so far, the first of several. So every stretch of the
    sequence has the shares, and it is a pure function of the weights. Each stream is read from its beginning on.
    """

    def __init__(self, streams: Sequence[tuple[float, TaskStream]]) -> None:
        total = sum(weight for weight, _ in streams)
        self._shares = [weight / total for weight, _ in streams]
        self._streams = [stream for _, stream in streams]
        self._taken = [0] * len(streams)
        self._places: list[tuple[int, int]] = []
        """The stream of each index, and the index in it, as far as they were asked for."""

    def __len__(self) -> int:
        """Number of indices in which every stream has a whole pass. Greedy choice is off by less than one index for
        each stream."""
        slack = len(self._streams)
        return math.ceil(max((len(stream) + slack) / share
                             for share, stream in zip(self._shares, self._streams, strict=True)))

    def __getitem__(self, index: int) -> str:
        while len(self._places) <= index:
            number = 1 + len(self._places)
            lacks = [share * number - taken for share, taken in zip(self._shares, self._taken, strict=True)]
            chosen = lacks.index(max(lacks))
            self._places.append((chosen, self._taken[chosen]))
            self._taken[chosen] += 1
        stream, place = self._places[index]
        return self._streams[stream][place]


class ContrastSampler:
    """Draws a task type for each group, by the number of the type's tasks times their weight (task_types.py).

    The weights follow from the rows of metrics.jsonl, which survive with the checkpoint, so it has no state of its own.
    The task is the entry at the group's index in a stream of the type's own, so within one pass of that stream no task
    comes twice.
    """

    def __init__(self, tasks: Sequence[str], task_type: Callable[[str], str], seed: int, *, staleness: int,
                 rows: Callable[[], Rows]) -> None:
        by_type = defaultdict[str, list[str]](list)
        for task in tasks:
            by_type[task_type(task)].append(task)
        self._streams = {name: TaskStream(by_type[name], seed_for(seed, "tasks of", name)) for name in sorted(by_type)}
        self._seed, self._staleness, self._rows = seed, staleness, rows

    def shares(self, consumed_at: int) -> dict[str, float]:
        """Returns the chance of each type, for groups that the learner takes while it holds the version of this step.
        """
        results = recent_results(self._rows(), self._newest(consumed_at))
        weights = {name: len(stream) * type_weight(results.get(name)) for name, stream in self._streams.items()}
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def stream(self, index: int, consumed_at: int) -> TaskStream:
        """Returns the stream from which group `index` takes its task."""
        shares = self.shares(consumed_at)
        draw = random.Random(seed_for(self._seed, "task type", index))
        return self._streams[draw.choices(list(shares), list(shares.values()))[0]]

    def waits(self, consumed_at: int, published: int) -> bool:
        """Whether a learner that repeats steps has yet to write a row that the group's task depends on.

        `published`: step of the learner's current version. Once that is later than the row's step, nobody will write
        the row: the file is damaged.
        """
        needed, rows = self._newest(consumed_at), self._rows()
        return (rows[-1]["step"] if rows else 0) < needed and published <= needed

    def _newest(self, consumed_at: int) -> int:
        """Returns the newest step whose row counts. A group is issued once the step after that one has begun, so the
        row is there, however the processes race."""
        return consumed_at - self._staleness - 1
