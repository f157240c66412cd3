"""Spans and metric labels of tickets and drops, for the controller and the learner alike."""

from __future__ import annotations

from collections.abc import Sequence

from services.records import Ticket
from services.telemetry.tracing import record, root

CLASSES = (
    ("env: ", "env"), ("agent: ", "agent"), ("engine: ", "engine"), ("store: ", "store"), ("episode: ", "episode"),
    ("nobody has the weights", "weights_gone"), ("over-age", "over_age"), ("uniform reward", "uniform_reward"),
    ("worker", "worker_lost"))
"""Pairs of the beginning of a drop's reason and its class."""


def reason_class(reason: str) -> str:
    """Returns the class of a drop's reason, one of services.telemetry.names.DROP_REASONS."""
    return next((name for start, name in CLASSES if reason.startswith(start)), "other")


def trace_issue(tickets: Sequence[Ticket]) -> None:
    """Records the root spans of a group that is issued now."""
    for ticket in tickets:
        root(ticket.id, group=ticket.group, task=ticket.task, kind=ticket.kind)


def trace_drop(group: str, size: int, reason: str) -> None:
    """Records that a group of `size` tickets is dropped now."""
    for k in range(size):
        record("drop", Ticket.id_of(group, k), reason=reason)
