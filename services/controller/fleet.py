"""Keeps the members of one role at the wanted number: adds members that are missing and drains those beyond it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from services.controller.member import Member
from services.controller.supervise import Supervisor

Kind = TypeVar("Kind", bound=Member)


class Fleet(Generic[Kind]):
    """Members with the numbers 0, 1, 2, ... `make(number)` creates the member with that number.

    A draining member keeps its number, because it keeps its name, its port and its heartbeats until it is gone.
    """

    def __init__(self, supervisor: Supervisor, make: Callable[[int], Kind]) -> None:
        self._supervisor = supervisor
        self._make = make
        self._kept: dict[int, Kind] = {}
        self._leaving: dict[int, Kind] = {}

    @property
    def wanted(self) -> int:
        """Number of members that are not draining."""
        return len(self._kept)

    @property
    def members(self) -> list[Kind]:
        """Members that are not draining, in the order of their numbers."""
        return [self._kept[index] for index in sorted(self._kept)]

    def want(self, count: int) -> None:
        """Adds members, or drains those with the highest numbers, until `count` are not draining."""
        self._leaving = {index: one for index, one in self._leaving.items() if self._supervisor.watches(one)}
        while len(self._kept) < count:
            index = next(i for i in range(count + len(self._leaving)) if i not in self._kept and i not in self._leaving)
            self._kept[index] = self._make(index)
            self._supervisor.add(self._kept[index])
        while len(self._kept) > count:
            index = max(self._kept)
            self._leaving[index] = self._kept.pop(index)
            self._supervisor.retire(self._leaving[index])
