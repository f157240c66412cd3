"""Serves all heartbeats of a run on one endpoint: `/metrics` for Prometheus, `/status` as JSON for `gagpo status`.

Only processes with a live heartbeat are shown, so dead ones leave no series. Workers beyond MAX_WORKERS are one series,
`other`: the sum of what adds up, and the largest value of what does not, such as a lag.
"""

from __future__ import annotations

import asyncio
import math
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
from services.telemetry.heartbeat import Beat
from services.telemetry.meters import OTHER
from services.telemetry.names import CATALOGUE
from services.telemetry.overhead import counted

MAX_WORKERS = 64
"""Most distinct worker labels of one exposition, so that restarts do not fill Prometheus."""

Beats = Mapping[str, Beat]


def families(beats: Beats) -> Iterator[Metric]:
    """Yields the declared metrics. Each sample gets the label `worker`; samples without a value are left out."""
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = defaultdict(lambda: defaultdict(float))
    for index, (worker, beat) in enumerate(sorted(beats.items())):
        label = worker if index < MAX_WORKERS else OTHER
        for name in beat.metrics.keys() & CATALOGUE.keys():
            for sample, labels, value in beat.metrics[name]:
                if value is not None and math.isfinite(value):
                    held, key = values[name], (sample, (*labels.items(), ("worker", label)))
                    held[key] = held[key] + value if CATALOGUE[name].adds_up else max(held.get(key, value), value)
    for name, declared in CATALOGUE.items():
        if name in values:
            family = Metric(name.removesuffix("_total"), declared.help, declared.kind)
            for (sample, labels), value in values[name].items():
                family.add_sample(sample, dict(labels), value)
            yield family


@counted("metrics")
def render(beats: Beats) -> bytes:
    """Returns the heartbeats in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(beats))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, beats: Beats) -> None:
        self._beats = beats

    def collect(self) -> Iterator[Metric]:
        return families(self._beats)


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
    bodies: dict[str, tuple[str, Callable[[Beats], bytes]]] = {
        "/metrics": (CONTENT_TYPE_LATEST, render), "/status": ("application/json", msgspec.json.encode)}

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD") or scope["path"] not in bodies:
            response = Response("not found", 404)
        else:
            kind, make = bodies[scope["path"]]
            try:
                response = Response(await asyncio.to_thread(lambda: make(read())), headers={"content-type": kind})
            except StoreFault as fault:
                response = Response(str(fault), 503)
        await response(scope, receive, send)

    return application
