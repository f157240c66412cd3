"""All heartbeats of a run on one endpoint: `/metrics` as Prometheus reads it, `/status` as JSON for `gagpo status`.

Only who beats now is shown, so the dead leave no series. Beyond MAX_WORKERS names the rest are summed as `other`.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from services.errors import StoreFault, UserError
from services.telemetry.heartbeat import Beat
from services.telemetry.logs import get_logger
from services.telemetry.meters import OTHER
from services.telemetry.names import CATALOGUE
from services.telemetry.overhead import counted

MAX_WORKERS = 64
"""Distinct worker labels in one exposition, so that no restart fills Prometheus."""
REQUEST_S = 10.0
"""How long a client may take to send its request."""
log = get_logger("exposition")

Beats = Mapping[str, Beat]


def families(beats: Beats) -> Iterator[Metric]:
    """Declared metrics alone, each sample with the label `worker`; a sample without a value is left out."""
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = defaultdict(lambda: defaultdict(float))
    for index, (worker, beat) in enumerate(sorted(beats.items())):
        label = worker if index < MAX_WORKERS else OTHER
        for name in beat.metrics.keys() & CATALOGUE.keys():
            for sample, labels, value in beat.metrics[name]:
                if value is not None and math.isfinite(value):
                    values[name][sample, (*labels.items(), ("worker", label))] += value
    for name, declared in CATALOGUE.items():
        if name in values:
            family = Metric(name.removesuffix("_total"), declared.help, declared.kind)
            for (sample, labels), value in values[name].items():
                family.add_sample(sample, dict(labels), value)
            yield family


@counted("metrics")
def render(beats: Beats) -> bytes:
    """Prometheus text."""
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
    """Serves what `read` returns at each request, from threads, until the block ends; yields `host:port`.

    Port 0 takes a free one. Raises UserError where the address cannot be taken.
    """
    try:
        server = ThreadingHTTPServer((host, port), _handler(read))
    except OSError as error:
        raise UserError(f"metrics cannot be served on {host}:{port} ({error.strerror})",
                        "set metrics.port to a free one, or to 0") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(REQUEST_S)


def _handler(read: Callable[[], Beats]) -> type[BaseHTTPRequestHandler]:
    bodies: dict[str, tuple[str, Callable[[Beats], bytes]]] = {
        "/metrics": (CONTENT_TYPE_LATEST, render), "/status": ("application/json", msgspec.json.encode)}

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            found = bodies.get(self.path.partition("?")[0])
            if found is None:
                self.send_error(404)
                return
            kind, make = found
            try:
                body = make(read())
            except StoreFault as fault:
                self.send_error(503, explain=str(fault))
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug("request", line=format % args)

    return Handler
