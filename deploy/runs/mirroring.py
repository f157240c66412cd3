"""The driver's thread that copies a run's folder to an object store: when it looks, and how long it waits.

    a pointer, an evaluation or a model has changed ──▶ push; the store fails ──▶ push again after 1, 2, 4 ... 30 s
    it has failed for storage.outage_seconds         ──▶ the next `check` raises, and the run ends
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from deploy.runs.mirror import Mirror, marks_of
from services.config.tree import Config
from services.errors import DeadlineExceeded
from services.object_folder import reason

SIGNS = ("run.json", "config.yaml", "evaluations.jsonl", "wanted.json", "checkpoints/latest.json",
         "checkpoints/best.json", "model-cold-start/sft.json", "model/config.json")
"""Files after whose change the folder is copied."""
LOOK_S = 0.5
LONGEST_PAUSE_S = 30.0
LEAVES_S = 5.0
"""Longest wait for an upload if the run ends by an error: the next start continues it."""


class Mirroring:
    """Use it as a context manager: a block that ends well waits until the whole folder is in the object store."""

    def __init__(self, config: Config, *, note: Callable[[str], None]) -> None:
        self._folder, self._url = config.run_dir, config.storage.url
        self._patience_s = config.storage.outage_seconds
        self._note = note
        self._mirror = Mirror(config) if config.storage.url else None
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def check(self) -> None:
        """Raises what has ended the copying: DeadlineExceeded, LeaseLost."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Mirroring:
        if self._mirror is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ending.set()
        if self._mirror is None:
            return
        self._thread.join(None if kind is None else LEAVES_S)
        if kind is None:
            self.check()
            self._patiently(self._mirror)

    def _run(self) -> None:
        assert self._mirror is not None
        seen: list[tuple[int, int] | None] = []
        try:
            while not self._ending.is_set():
                now = [_marks(self._folder / name) for name in SIGNS]
                if now != seen:
                    self._patiently(self._mirror)
                    seen = now
                self._ending.wait(LOOK_S)
        except Exception as error:
            self._error = error

    def _patiently(self, mirror: Mirror) -> None:
        """Pushes until it succeeds. Raises DeadlineExceeded after storage.outage_seconds of failures."""
        since, pause = time.monotonic(), 1.0
        while True:
            try:
                mirror.push()
            except OSError as error:  # also of a local file that was replaced meanwhile
                if (lasted := time.monotonic() - since) > self._patience_s:
                    raise DeadlineExceeded(f"{self._url} has failed for {lasted:.0f} s ({reason(error)}; "
                                           "storage.outage_seconds)") from error
                self._note(f"warning: {self._url} does not take the run's files ({reason(error)}); "
                           f"tries again in {pause:g} s")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                return


def _marks(path: Path) -> tuple[int, int] | None:
    try:
        return marks_of(path)
    except FileNotFoundError:
        return None
