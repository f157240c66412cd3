"""The driver's thread that copies a run's folder to an object store: when it looks, and how long it waits.

    a pointer, an evaluation or a model has changed ──▶ push; it fails ──▶ push again after 1, 2, 4 ... 30 s
    the store has failed for storage.outage_seconds,
    or the run's folder for learner.collective_s     ──▶ the next `check` raises, and the run ends
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from deploy.runs.mirror import Mirror, marks_of
from services.config.tree import Config
from services.errors import DeadlineExceeded
from services.object_folder import StoreAway

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
        self._store_s, self._folder_s = config.storage.outage_seconds, config.learner.collective_s
        self._note = note
        self._mirror = Mirror(config) if config.storage.url else None
        self._ending = threading.Event()
        self._seen: list[tuple[int, int] | None] = []
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
            self._patiently(self._mirror, Mirror.push)

    def _run(self) -> None:
        assert self._mirror is not None
        try:
            while not self._ending.is_set():
                self._patiently(self._mirror, self._push_if_changed)
                self._ending.wait(LOOK_S)
        except Exception as error:
            self._error = error

    def _push_if_changed(self, mirror: Mirror) -> None:
        now = [_marks(self._folder / name) for name in SIGNS]
        if now != self._seen:
            mirror.push()
            self._seen = now

    def _patiently(self, mirror: Mirror, push: Callable[[Mirror], None]) -> None:
        """Calls `push` until it succeeds. Raises DeadlineExceeded if the store or the run's folder fails for too long.

        The store's failures count from the first failure of a file that still fails, so an upload may take longer, and
        a slow network that takes some files in each attempt ends no run. If no file has failed, another call has: a
        read, a list. The folder's failures count from the first one after the last upload.
        """
        others_since, away_since, pause = None, None, 1.0
        while True:
            try:
                return push(mirror)
            except StoreAway as error:
                since, now = min(mirror.failing.values(), default=None), time.monotonic()
                others_since = (others_since or now) if since is None else None
                if (lasted := now - (since or others_since or now)) > self._store_s:
                    raise DeadlineExceeded(f"{self._url} has failed for {lasted:.0f} s ({error}; "
                                           "storage.outage_seconds)") from error
                trouble = f"{self._url} does not take the run's files ({error})"
            except OSError as error:  # also of a file that was replaced meanwhile
                now = time.monotonic()
                away_since = max(away_since or now, mirror.sent_at)
                if (lasted := now - away_since) > self._folder_s:
                    raise DeadlineExceeded(f"{self._folder} could not be read or written for {lasted:.0f} s ({error}; "
                                           "learner.collective_s)") from error
                trouble = f"{self._folder} could not be read or written ({error})"
            self._note(f"warning: {trouble}; tries again in {pause:g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _marks(path: Path) -> tuple[int, int] | None:
    try:
        return marks_of(path)
    except FileNotFoundError:
        return None
