"""Serves all heartbeats of a run on one endpoint: `/metrics` for Prometheus, `/status` as JSON for `gagpo status`.

Only processes with a live heartbeat are shown, so dead ones have no series. Workers from number MAX_WORKERS on are one
series, `other`: the sum of what adds up, and the largest value of what does not, such as a lag.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.errors import StoreFault, UserError
from services.process.addresses import host_port, is_local
from services.telemetry.catalogue import CATALOGUE
from services.telemetry.heartbeat import Beat
from services.telemetry.meters import OTHER

MAX_WORKERS = 64
"""Most distinct worker labels of one role, so that large runs do not fill Prometheus."""

Beats = Mapping[str, Beat]
Sample = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a series."""


class Exposition:
    """Turns heartbeats into Prometheus' text format. Not thread-safe.

    The counters of `other` never fall, even if one of its workers exits or restarts. Prometheus would take a fall for a
    counter that restarted at 0, and add its entire remaining value to the rate.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, Sample], float] = {}
        self._totals: dict[Sample, float] = defaultdict(float)

    def __call__(self, beats: Beats) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Once(self._families(beats)))
        return generate_latest(registry)

    def _families(self, beats: Beats) -> Iterator[Metric]:
        """Yields the declared metrics. Each sample gets the label `worker`; samples without a value are left out."""
        values: dict[str, dict[Sample, float]] = defaultdict(dict)
        for worker, beat in sorted(beats.items()):
            label = _label(worker)
            for name in beat.metrics.keys() & CATALOGUE.keys():
                for sample, labels, value in beat.metrics[name]:
                    if value is not None and math.isfinite(value):
                        held, key = values[name], (sample, (*labels.items(), ("worker", label)))
                        held[key] = value if label == worker else self._joined(name, worker, key, value, held.get(key))
        for name, declared in CATALOGUE.items():
            if name in values:
                family = Metric(name.removesuffix("_total"), declared.help, declared.kind)
                for (sample, labels), value in values[name].items():
                    family.add_sample(sample, dict(labels), value)
                yield family

    def _joined(self, name: str, worker: str, key: Sample, value: float, held: float | None) -> float:
        """Returns the value of `other` after that of one more worker. `held`: the value so far, if there is one."""
        declared = CATALOGUE[name]
        if declared.kind == "gauge":
            return value if held is None else held + value if declared.adds_up else max(held, value)
        before = self._last.get((worker, key), 0.0)
        self._last[worker, key] = value
        self._totals[key] += value - before if value >= before else value
        return self._totals[key]


def _label(worker: str) -> str:
    """Returns the label of a worker: its name, or `other` from the number MAX_WORKERS on."""
    number = worker.rpartition("-")[2]
    return OTHER if number.isdecimal() and int(number) >= MAX_WORKERS else worker


class _Once(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families


@contextmanager
def serving(read: Callable[[], Beats], *, host: str, port: int) -> Iterator[str]:
    """Serves the heartbeats that `read` returns at each request, from threads, until the block ends.

    Yields `HOST:PORT`, the part of a URL; port 0 takes a free port. Raises UserError if the address is not available.
    """
    from services.http.server import bind, serving_in_thread

    try:
        listener = bind(host, port)
    except UserError as error:
        raise UserError(f"metrics: {error.what}", "set metrics.port to a free one, or to 0") from None
    address = host_port(host, listener.getsockname()[1])
    with serving_in_thread(_application(read), listener, local_only=is_local(host), name="metrics"):
        yield address


def _application(read: Callable[[], Beats]) -> ASGIApp:
    """Returns the endpoint as an ASGI application. It reads the store in a thread, because that may take seconds."""
    render, one_at_a_time = Exposition(), threading.Lock()

    def metrics() -> bytes:
        with one_at_a_time:  # else a scrape could render older heartbeats after newer ones, and counters would fall
            return render(read())

    bodies: dict[str, tuple[str, Callable[[], bytes]]] = {
        "/metrics": (CONTENT_TYPE_LATEST, metrics),
        "/status": ("application/json", lambda: msgspec.json.encode(read()))}

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD") or scope["path"] not in bodies:
            response = Response("not found", 404)
        else:
            kind, make = bodies[scope["path"]]
            try:
                response = Response(await asyncio.to_thread(make), headers={"content-type": kind})
            except StoreFault as fault:
                response = Response(str(fault), 503)
        await response(scope, receive, send)

    return application
