"""A piece of work in a thread beside the training loop, one at a time, such as writing a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable

from services.errors import DeadlineExceeded, LearnerFault
from services.telemetry.logs import get_logger

log = get_logger("learner")


class Background:
    """The caller finds an error of the work at its next `check`, `wait` or `start`.

    Use it as a context manager: the end of the block waits for the work. `deadline_s` bounds each wait.
    """

    def __init__(self, doing: str, *, deadline_s: float) -> None:
        self._doing = doing
        self._deadline_s = deadline_s
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether the work goes on."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], object]) -> None:
        """Waits for the work before, then begins `work`."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._doing, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what ended the work, once."""
        error, self._error = self._error, None
        if isinstance(error, Exception):
            raise error
        if error is not None:  # torch's CheckpointException is a BaseException, of many lines
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise LearnerFault(f"{self._doing}: {first}") from error

    def wait(self) -> None:
        """Returns once there is no work. Raises what ended it, or DeadlineExceeded."""
        if self._thread is not None:
            self._thread.join(self._deadline_s)
            if self._thread.is_alive():
                raise DeadlineExceeded(f"{self._doing}: not done in {self._deadline_s:g} s (learner.collective_s)")
        self.check()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Waits; an error of the work does not hide that of the block."""
        if kind is None:
            self.wait()
            return
        try:
            self.wait()
        except Exception as error:
            log.warning("work beside the loop failed too", doing=self._doing, reason=str(error))

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
