"""An OTLP/HTTP receiver that keeps a run's spans as plain records."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Told:
    """One span. Ids are hexadecimal; a root has no parent."""

    name: str
    trace: str
    id: str
    parent: str
    process: str
    run: str
    error: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    """Attributes, those of ours without `gagpo.`."""


class Collector:
    """Receives on a free port of this machine during its block. `url` is the value for metrics.traces."""

    def __init__(self) -> None:
        self.spans: list[Told] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Told]:
        return [span for span in self.spans if span.name == name]

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found = self.path == "/v1/traces"
                if found:
                    spans.extend(_told(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200 if found else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        return Handler


def _told(request: ExportTraceServiceRequest) -> list[Told]:
    return [
        Told(name=span.name, trace=span.trace_id.hex(), id=span.span_id.hex(), parent=span.parent_span_id.hex(),
             process=(of := _facts(resource.resource.attributes))["service.instance.id"], run=of.get("gagpo.run", ""),
             error=span.status.message, seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
             facts={name.removeprefix("gagpo."): value for name, value in _facts(span.attributes).items()})
        for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def _facts(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    plain = getattr(value, kind)
    return [_value(part) for part in plain.values] if kind == "array_value" else plain
