"""OpenTelemetry traces: one for each ticket, from its issue to the step that trained on it. Off by default.

    ticket                      controller, as it is issued: the root
    ├── episode                 rollout worker, one for each attempt
    │   ├── turn                one request to the engine
    │   └── environment step    as the client sees it, retries included (or reset)
    │       └── serve step      environment server (or reset, rebuild)
    ├── train                   learner, the step that consumed it
    └── drop                    controller or learner, with the reason

Each process derives the ids of a ticket's trace from run and ticket (spans.py), so the store carries none, and a
redelivered ticket continues its trace. Environment servers know neither run nor ticket, so requests to them carry the
parent span of each element (envservice/wire/schemas.py, TRACES_HEADER).

If tracing is off, a span is None and costs one `if`; only services/telemetry/spans.py imports opentelemetry:

    with span("turn", prompt_tokens=len(prompt)) as told:
        sample = await engine.sample(prompt)
        if told:
            told.set(response_tokens=len(sample.ids))
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from services.errors import UserError

if TYPE_CHECKING:
    from services.telemetry.spans import Span, Tracer

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

_OFF: AbstractContextManager[None] = nullcontext()
_tracer: Tracer | None = None


def check(endpoint: str | None) -> None:
    """Raises UserError if traces are configured and OpenTelemetry is not installed. Does not import it."""
    if endpoint is not None and not all(map(_installed, PACKAGES)):
        raise UserError("metrics.traces is set, but OpenTelemetry is not installed", "pip install 'gagpo[traces]'")


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


@contextmanager
def tracing(endpoint: str | None, *, process: str, run: str = "") -> Iterator[None]:
    """Sends this process's spans to the OTLP/HTTP receiver at `endpoint` until the block ends. None: does nothing.

    `process`: its name as in the log, such as `rollout-1`. `run`: "" for an environment server, which may serve many
    runs. Raises UserError as check() does.
    """
    global _tracer  # noqa: PLW0603 - a process has one tracer
    check(endpoint)
    if endpoint is not None:
        from services.telemetry.spans import Tracer

        _tracer = Tracer(endpoint, process=process, run=run)
    try:
        yield
    finally:
        stop()


def stop() -> None:
    """Sends the waiting spans, within a deadline. Does nothing if tracing is off."""
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def traced() -> bool:
    """Returns whether tracing is on, for callers whose attributes are expensive to compute."""
    return _tracer is not None


def span(name: str, *, ticket: str = "", parent: str = "", **attributes: Any) -> AbstractContextManager[Span | None]:
    """Returns a span below a ticket's root, or below `parent` (a traceparent() of another process), or below the
    current span."""
    return _OFF if _tracer is None else _tracer.span(name, ticket=ticket, parent=parent, attributes=attributes)


def record(name: str, ticket: str, *, since: int | None = None, **attributes: Any) -> None:
    """Records something that happened to a ticket. `since`: time.time_ns() of its beginning; None: now."""
    if _tracer is not None:
        _tracer.record(name, ticket, since=since, attributes=attributes)


def root(ticket: str, **attributes: Any) -> None:
    """Records the root of a ticket's trace. It ends at once, so that no process must live until the ticket ends."""
    if _tracer is not None:
        _tracer.root(ticket, attributes)


def traceparent() -> str:
    """Returns the current span in W3C's format, for another process, or "" if tracing is off."""
    return "" if _tracer is None else _tracer.traceparent()
