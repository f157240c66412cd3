"""The panels of the Grafana dashboards in deploy/prometheus, and the queries that they send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from deploy.monitor.servers import DASHBOARDS

FILES = tuple(sorted(DASHBOARDS.glob("*.json")))


class Query(NamedTuple):
    """One query of a panel."""

    dashboard: str
    panel: str
    expr: str
    legend: str


def load_panels(name: str) -> list[dict[str, Any]]:
    """Returns the panels of a dashboard, those in collapsed rows included."""
    panels: list[dict[str, Any]] = json.loads((DASHBOARDS / f"{name}.json").read_text())["panels"]
    return [each for panel in panels for each in (panel, *panel.get("panels", ()))]


def list_queries() -> Iterator[Query]:
    """Yields the queries of all dashboards."""
    for file in FILES:
        for panel in load_panels(file.stem):
            for target in panel.get("targets", ()):
                yield Query(file.stem, panel["title"], target["expr"], target["legendFormat"])
