"""A task in a thread alongside the training loop, one at a time, such as writing a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable

from services.errors import DeadlineExceeded, LearnerFault, first_line
from services.telemetry.logs import get_logger

log = get_logger("learner")


class Background:
    """Runs one task at a time. Its error is raised by the next `check`, `wait` or `start`.

    Use it as a context manager: the end of the block waits for the task. `deadline_s` bounds each wait.
    """

    def __init__(self, doing: str, *, deadline_s: float) -> None:
        self._doing = doing
        self._deadline_s = deadline_s
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a task is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], object]) -> None:
        """Waits for the previous task, then starts `work`."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._doing, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of the last task, once."""
        error, self._error = self._error, None
        if isinstance(error, Exception):
            raise error
        if error is not None:  # torch's CheckpointException is a BaseException, of many lines
            raise LearnerFault(f"{self._doing}: {first_line(error)}") from error

    def wait(self) -> None:
        """Waits for the task. Raises its error, or DeadlineExceeded."""
        if self._thread is not None:
            self._thread.join(self._deadline_s)
            if self._thread.is_alive():
                raise DeadlineExceeded(f"{self._doing}: not done in {self._deadline_s:g} s (learner.collective_s)")
        self.check()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Waits for the task. Its error does not hide an error of the block."""
        if kind is None:
            self.wait()
            return
        try:
            self.wait()
        except Exception as error:
            log.warning("a background task failed too", doing=self._doing, reason=str(error))

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
