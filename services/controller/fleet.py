"""The members of one role in the number that is wanted: new ones are added, and those beyond it are drained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from services.controller.member import Member
from services.controller.supervise import Supervisor

Kind = TypeVar("Kind", bound=Member)


class Fleet(Generic[Kind]):
    """Members with the numbers 0, 1, 2, ... `make` creates the one with a number.

    A number is free again once its member is gone: a draining one keeps its name, its port and its heartbeats.
    """

    def __init__(self, supervisor: Supervisor, make: Callable[[int], Kind]) -> None:
        self._supervisor = supervisor
        self._make = make
        self._kept: dict[int, Kind] = {}
        self._leaving: dict[int, Kind] = {}

    @property
    def wanted(self) -> int:
        """The number of members that stay."""
        return len(self._kept)

    @property
    def members(self) -> list[Kind]:
        """The members that stay, by number."""
        return [self._kept[index] for index in sorted(self._kept)]

    def want(self, count: int) -> None:
        """Adds members, or drains those with the highest numbers, until `count` stay."""
        self._leaving = {index: one for index, one in self._leaving.items() if self._supervisor.watches(one)}
        while len(self._kept) < count:
            index = next(i for i in range(count + len(self._leaving)) if i not in self._kept and i not in self._leaving)
            self._kept[index] = self._make(index)
            self._supervisor.add(self._kept[index])
        while len(self._kept) > count:
            index = max(self._kept)
            self._leaving[index] = self._kept.pop(index)
            self._supervisor.retire(self._leaving[index])
