"""Reads the metrics that a server exposes for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from services.telemetry.names import Snapshot


def scraped(server: str, *, seconds: float, headers: Mapping[str, str] | None = None) -> Snapshot:
    """Returns the metrics at the URL of a server; {} if none come within `seconds`, because it is away, refuses, or is
    another program."""
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    from services.http.bounded import get

    meters: Snapshot = {}
    try:
        reply = get(f"{server}/metrics", seconds=seconds, headers=headers).raise_for_status()
        for family in text_string_to_metric_families(reply.content.decode()):
            for sample in family.samples:
                name = family.name if family.type == "histogram" else sample.name
                meters.setdefault(name, []).append((sample.name, dict(sample.labels), sample.value))
    except (httpx.HTTPError, ValueError):  # ValueError: these are no metrics
        return {}
    return meters
