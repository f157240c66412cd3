"""Keeps a lease alive while its holder is busy."""

from __future__ import annotations

import threading

from services.errors import LeaseLost
from services.store.lease import Lease
from services.store.store import Store


class LeaseKeeper:
    """Renews a lease three times within its time to live, in its own thread, because a step may take longer."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store = store
        self._lease = lease
        self._error: Exception | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{lease.role}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(self._lease.ttl_s)
        if self._error is None:
            self._store.release(self._lease)

    def check(self) -> None:
        """Raises LeaseLost if this process has lost the role or could not renew the lease."""
        if self._error is not None:
            raise LeaseLost(f"the lease of {self._lease.role} could not be renewed: {self._error}") from self._error

    def _run(self) -> None:
        """Renews until stopped. Keeps an error for the loop's thread; the store refuses writes without a lease."""
        while not self._done.wait(self._lease.ttl_s / 3):
            try:
                self._store.renew(self._lease)
            except Exception as error:
                self._error = error
                return
