"""The page of metrics, from the catalogue in services/telemetry/names.py."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.reference.markdown import code, document, table
from services.telemetry.names import CATALOGUE, Bound

INTRODUCTION = """Every metric that gagpo exports, as services/telemetry/names.py declares it. \
[Watch runs](../operate/metrics.md) says where they are served.

Counters start at 0 in each process, as Prometheus expects. A gauge that has not been set yet has no series. \
Rollout workers, the learner and the controller add the label `worker`."""


def page() -> str:
    """Returns the page."""
    rows = [[code(one.name), one.kind, ", ".join(one.roles), _labels(one.labels), one.help]
            for one in CATALOGUE.values()]
    return document("Metrics", INTRODUCTION, table(["metric", "type", "from", "labels", "meaning"], rows))


def _labels(labels: Mapping[str, Bound]) -> str:
    return "; ".join(f"{name}: at most {bound} values" if isinstance(bound, int) else f"{name}: {', '.join(bound)}"
                     for name, bound in labels.items())
