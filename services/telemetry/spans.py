"""Sends spans to an OTLP/HTTP receiver: the half of services/telemetry/tracing.py that needs opentelemetry.

Spans wait in a bounded queue for a thread that sends them. If the endpoint does not answer, the spans that do not fit
are lost, which is logged once, and nothing is delayed. Not covered: the last second of a process that is killed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.telemetry.logs import get_logger

SERVICE = "gagpo"
QUEUE, BATCH = 8192, 512
"""Most spans in the queue, and in one request. When the queue is full, the oldest are dropped."""
DELAY_S = 1.0
"""Seconds after which waiting spans are sent even if they do not fill a request."""
EXPORT_S = 2.0
"""Deadline in seconds of one request with its retries."""
STOP_S = 3.0
"""Seconds to send the waiting spans when a process ends."""
SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
log = get_logger("tracing")
_root: ContextVar[tuple[int, int] | None] = ContextVar("root", default=None)


def ids(run: str, ticket: str) -> tuple[int, int]:
    """Returns the ids of a ticket's trace and of its root span: 128 and 64 bits of blake2b over run and ticket."""
    digest = hashlib.blake2b(f"{run}\0{ticket}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")


class Span:
    """A span that lasts as long as its block. An exception that leaves the block is recorded as its error."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token: Token[context.Context] | None = None

    def set(self, **attributes: Any) -> None:
        """Adds attributes that were not known at the start, each as `gagpo.<name>`."""
        self._span.set_attributes(_named(attributes))

    def rename(self, name: str) -> None:
        """Changes the span's name, if it turns out to be another kind of work."""
        self._span.update_name(name)

    def __enter__(self) -> Span:
        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._token is not None
        context.detach(self._token)
        if kind is not None:
            self._span.set_attribute("error.type", kind.__qualname__)
            self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()


class Tracer:
    """Makes this process's spans and sends them. Thread-safe."""

    def __init__(self, endpoint: str, *, process: str, run: str) -> None:
        complaints = logging.getLogger("opentelemetry")
        complaints.handlers, complaints.propagate = [_FirstTime(endpoint)], False
        resource = {"service.name": SERVICE, "service.instance.id": process, **({"gagpo.run": run} if run else {})}
        self._run = run
        # Not the process's global provider, because vLLM sets that one.
        self._provider = TracerProvider(
            resource=Resource.create(resource), id_generator=_SpanIds(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(
            OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S), max_queue_size=QUEUE,
            max_export_batch_size=BATCH, schedule_delay_millis=1000 * DELAY_S))
        self._tracer = self._provider.get_tracer(SERVICE)

    def span(self, name: str, *, ticket: str, parent: str, attributes: Mapping[str, Any]) -> Span:
        """See tracing.span. If `parent` is not a valid traceparent (any client may send one), it starts a new trace."""
        if ticket:
            return Span(self._begin(name, ticket, attributes))
        where = _parents.extract({"traceparent": parent}, context.Context()) if parent else None
        return Span(self._tracer.start_span(name, where, attributes=_named(attributes)))

    def record(self, name: str, ticket: str, *, since: int | None, attributes: Mapping[str, Any]) -> None:
        """See tracing.record."""
        self._begin(name, ticket, attributes, since=since).end()

    def root(self, ticket: str, attributes: Mapping[str, Any]) -> None:
        """See tracing.root."""
        token = _root.set(ids(self._run, ticket))
        self._tracer.start_span("ticket", context.Context(), attributes=_named({"ticket": ticket, **attributes})).end()
        _root.reset(token)

    def traceparent(self) -> str:
        """See tracing.traceparent."""
        here = trace.get_current_span().get_span_context()
        return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"

    def close(self) -> None:
        """Sends the waiting spans, for at most STOP_S."""
        # In a thread, because the SDK waits up to 30 s if the endpoint is dead.
        last = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        last.start()
        last.join(STOP_S)

    def _begin(
        self, name: str, ticket: str, attributes: Mapping[str, Any], *, since: int | None = None,
    ) -> trace.Span:
        """Starts a span below the root of `ticket`. The root need not have been sent."""
        trace_id, span_id = ids(self._run, ticket)
        above = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=SAMPLED)
        return self._tracer.start_span(
            name, trace.set_span_in_context(trace.NonRecordingSpan(above), context.Context()),
            attributes=_named({"ticket": ticket, **attributes}), start_time=since)


class _SpanIds(RandomIdGenerator):
    """Random ids, except those of a root span, which follow from its ticket."""

    def generate_trace_id(self) -> int:
        root = _root.get()
        return super().generate_trace_id() if root is None else root[0]

    def generate_span_id(self) -> int:
        root = _root.get()
        return super().generate_span_id() if root is None else root[1]

    def is_trace_id_random(self) -> bool:
        return False


class _FirstTime(logging.Handler):
    """Writes the SDK's first complaint about sending spans to the run's log, and no later one."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint, self._said = endpoint, False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._said:
            self._said = True
            log.warning("traces are lost or late; said once", endpoint=self._endpoint, reason=record.getMessage())


_parents = TraceContextTextMapPropagator()


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"gagpo.{name}": value for name, value in attributes.items()}
