"""Several environments as one, so that each server of a run plays all of them. A task's id names its environment."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from envservice.base import Environment, Outcome, RecordedSession, Replay, Session
from envservice.checks import tasks_of
from services.errors import EnvFault, UserError

LONGEST_VERSION = 120
"""Most characters of a version; a longer one is replaced by its hash. Each step carries it in its digest, whose length
the API bounds."""
SPLITS = 3
"""Number of splits of a run: to train on, to choose the best checkpoint by, and to report on."""


class Mixture:
    """An Environment that holds several. The name of an environment begins the ids of its tasks, and the types that
    `task_type` returns.

    It has the three splits of a run. Each has the tasks of that split of every environment.
    """

    def __init__(self, parts: Sequence[Environment]) -> None:
        """Raises UserError for a live environment, and for two with the same name."""
        for part in parts:
            if part.replay == "live":
                raise UserError(f"{part.name} is live, which a list of environments cannot hold yet",
                                "train it in a run of its own")
        name, times = Counter(part.name for part in parts).most_common(1)[0]
        if times > 1:
            raise UserError(f"two environments of the list have the name {name}", "give each a name of its own")
        self.parts = {part.name: part for part in parts}
        self.name = "+".join(self.parts)
        self.engine = "several"
        versions = ", ".join(f"{part.engine} {part.version}" for part in parts)
        self.version = versions if len(versions) <= LONGEST_VERSION else \
            hashlib.blake2b(versions.encode(), digest_size=8).hexdigest()
        self.replay: Replay = "pure" if all(part.replay == "pure" for part in parts) else "transcript"
        splits = zip(*(part.training_splits() for part in parts), strict=True)
        self._splits = {"+".join(dict.fromkeys(names)): names for names in splits}
        self._stack = ExitStack()

    def __enter__(self) -> Mixture:
        for part in self.parts.values():
            if isinstance(part, AbstractContextManager):
                self._stack.enter_context(part)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def splits(self) -> list[str]:
        return list(self._splits)

    def training_splits(self) -> tuple[str, str, str]:
        """Raises UserError if two of the three splits would have the same name."""
        if len(self._splits) < SPLITS:
            raise UserError(f"the splits of {self.name} have the names {', '.join(self._splits)} alone",
                            "give the splits of your own environment other names")
        train, validation, heldout = self._splits
        return train, validation, heldout

    def part_of(self, task: str) -> Environment:
        """Returns the environment of a task. Raises KeyError if the id begins with the name of none."""
        return self.parts[task.partition("/")[0]]

    def by_part(self, tasks: Iterable[str]) -> dict[str, list[str]]:
        """Returns tasks by the name of their environment, in the order of the parts and of `tasks`."""
        by_part: dict[str, list[str]] = {name: [] for name in self.parts}
        for task in tasks:
            by_part[self.part_of(task).name].append(task)
        return by_part

    def tasks(self, split: str) -> list[str]:
        """Raises UserError for an unknown split, and for an environment of the user's own whose ids do not begin with
        its name."""
        tasks: list[str] = []
        for part, own_split in self._splits_of_parts(split):
            own = tasks_of(part, own_split)
            if other := next((task for task in own if not task.startswith(f"{part.name}/")), None):
                raise UserError(f"the environment {part.name} has the task {other!r:.60}, and the tasks of several "
                                "environments are distinguished by their ids", f"let its ids begin with {part.name}/")
            tasks += own
        return sorted(tasks)

    def task_type(self, task: str) -> str:
        part = self.part_of(task)
        return f"{part.name}/{part.task_type(task)}"

    def digest(self, split: str) -> str:
        digest = hashlib.blake2b()
        for part, own_split in self._splits_of_parts(split):
            digest.update(f"{part.name} {own_split} {part.digest(own_split)}\n".encode())
        return digest.hexdigest()

    def _splits_of_parts(self, split: str) -> Iterator[tuple[Environment, str]]:
        if split not in self._splits:
            raise UserError(f"{self.name} has no split {split!r}", f"choose one of {', '.join(self._splits)}")
        return zip(self.parts.values(), self._splits[split], strict=True)

    def task_digest(self, task: str) -> str:
        return self.part_of(task).task_digest(task)

    def open(self, task: str) -> Session:
        part = self.part_of(task)
        session = part.open(task)
        return _Recalling(session) if self.replay == "transcript" and part.replay == "pure" else session


class _Recalling(RecordedSession):
    """A session of a pure environment in a mixture whose sessions are rebuilt from outcomes. Its `recall` steps again,
    and raises EnvFault if the outcome differs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def reset(self) -> Outcome:
        return self._session.reset()

    def step(self, action: str) -> Outcome:
        return self._session.step(action)

    def recall(self, action: str, outcome: Outcome) -> None:
        again = self._session.step(action)
        if (again.observation, again.done, again.won) != (outcome.observation, outcome.done, outcome.won):
            raise EnvFault(f"the action {action!r:.60} led to another outcome than it had before")
