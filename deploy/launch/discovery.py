"""Finds the environment servers that `env.urls` name now. Each address of a name counts as one server.

So servers behind a headless Service of Kubernetes, or behind the name of a scaled service of compose, come and go while
a run goes on: the driver resolves the names again and again, and tells all workers the list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from services.process.addresses import servers_behind
from services.telemetry.logs import get_logger

log = get_logger("discovery")
RESOLVE_S = 5.0
"""Seconds between two look-ups of the names: the TTL of such names in Kubernetes."""


class Discovery:
    """Keeps the list of servers up to date during its block. `urls` never waits for a name server.

    A name that does not resolve keeps the addresses that it had.
    """

    def __init__(self, urls: Sequence[str], *, resolve: Callable[[str], Sequence[str]] = servers_behind,
                 every_s: float = RESOLVE_S) -> None:
        self._resolve, self._every_s = resolve, every_s
        self._found: dict[str, tuple[str, ...]] = {url: (url,) for url in urls}
        self._lost: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def __enter__(self) -> Discovery:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def urls(self) -> tuple[str, ...]:
        """Returns the present servers, each once."""
        return tuple(dict.fromkeys(one for found in self._found.values() for one in found))

    def look(self) -> None:
        """Resolves every name once."""
        for url, before in self._found.items():
            try:
                found = tuple(self._resolve(url))
            except OSError as error:
                if url not in self._lost:  # told once in each outage
                    log.warning("the name of an environment server does not resolve", url=url, reason=str(error))
                self._lost.add(url)
                continue
            self._lost.discard(url)
            if found != before:
                log.info("environment servers", url=url, servers=found)
            self._found = {**self._found, url: found}

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            self.look()
