"""The metric label of a dropped group, for the controller and the learner alike."""

from __future__ import annotations

CLASSES = (
    ("env: ", "env"), ("agent: ", "agent"), ("engine: ", "engine"), ("store: ", "store"), ("episode: ", "episode"),
    ("nobody has the weights", "weights_gone"), ("over-age", "over_age"), ("uniform reward", "uniform_reward"),
    ("worker", "worker_lost"))
"""Pairs of the beginning of a drop's reason and its class."""


def reason_class(reason: str) -> str:
    """Returns the class of a drop's reason, one of services.telemetry.names.DROP_REASONS."""
    return next((name for start, name in CLASSES if reason.startswith(start)), "other")
