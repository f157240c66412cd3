"""OpenTelemetry traces: one for each ticket, from its issue to the step that trained on it. Off by default.

    ticket                      controller, as it is issued: the root
    ├── episode                 rollout worker, one for each attempt
    │   ├── turn                what the engine was asked, and answered
    │   └── environment step    as its client sees it, retries included (or reset)
    │       └── serve step      environment server (or reset, rebuild)
    ├── train                   learner, the step that consumed it
    └── drop                    controller or learner, and why

Every process knows by itself where a ticket's spans belong (spans.py), so nothing travels in the store, and a
redelivered ticket goes on in its own trace. Environment servers know neither run nor ticket: requests to them carry the
parent of each of their elements (envservice/wire/schemas.py, TRACES_HEADER).

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
    """Raises UserError where traces are asked for and OpenTelemetry is not installed. Does not import it."""
    if endpoint is not None and not all(map(_installed, PACKAGES)):
        raise UserError("metrics.traces is set, and OpenTelemetry is not installed", "pip install 'gagpo[traces]'")


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


@contextmanager
def tracing(endpoint: str | None, *, process: str, run: str = "") -> Iterator[None]:
    """This process's spans go to the OTLP/HTTP receiver at `endpoint` while the block goes on; None: nothing is done.

    `process`: as in the log, `rollout-1`; `run`: "" for an environment server, which may serve many. Raises UserError.
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
    """Sends what waits, within a deadline. Nothing is done where nothing is traced."""
    global _tracer
    tracer, _tracer = _tracer, None
    if tracer is not None:
        tracer.close()


def traced() -> bool:
    """Whether anybody is told: for callers to whom it is work to find out what to tell."""
    return _tracer is not None


def span(name: str, *, ticket: str = "", parent: str = "", **attributes: Any) -> AbstractContextManager[Span | None]:
    """A span below a ticket's root, below `parent` (what traceparent() gave elsewhere), or below the one around it."""
    return _OFF if _tracer is None else _tracer.span(name, ticket=ticket, parent=parent, attributes=attributes)


def record(name: str, ticket: str, *, since: int | None = None, **attributes: Any) -> None:
    """What has happened to a ticket. `since`: time.time_ns() as it began; None: now."""
    if _tracer is not None:
        _tracer.record(name, ticket, since=since, attributes=attributes)


def root(ticket: str, **attributes: Any) -> None:
    """The root of a ticket's trace, over as soon as begun: nobody need live until the ticket's end to tell it."""
    if _tracer is not None:
        _tracer.root(ticket, attributes)


def traceparent() -> str:
    """The span around the caller in W3C's form, for another process; "" where nothing is traced."""
    return "" if _tracer is None else _tracer.traceparent()
