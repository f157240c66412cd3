"""A store that runs calls several times, as a client does when Redis ran a call and its reply was lost."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from services.store.store import Store

T = TypeVar("T")


class RepeatingStore(Store):
    """Makes each call once more for each event in `meanwhile`: the call, then the event, then the call again."""

    meanwhile: Sequence[Callable[[], object]] = ()

    def __init__(self, url: str, run: str, *, timeout_s: float = 10.0) -> None:
        super().__init__(url, run, timeout_s=timeout_s)
        once = self.connection.retry

        def repeatedly(what: str, call: Callable[[], T]) -> T:
            for event in self.meanwhile:
                call()
                event()
            return once(what, call)

        self.connection.retry = repeatedly
