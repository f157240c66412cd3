"""The page of metrics, from services/telemetry/names.py and the keys in services/telemetry/metric_keys.py."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.reference.markdown import code, document, table
from services.telemetry.metric_keys import METRIC_TEXTS
from services.telemetry.names import CATALOGUE, Bound

INTRODUCTION = """Every metric that gagpo exports, as services/telemetry/names.py declares it, \
and every [key of metrics.jsonl](#keys-of-metricsjsonl). \
[Watch runs](../operate/metrics.md) says where they are served.

Counters start at 0 in each process, as Prometheus expects. A gauge that has not been set yet has no series. \
Rollout workers, the learner and the controller add the label `worker`."""

KEYS = """A run's folder has a line of metrics.jsonl for each learner step, with these keys and `format`, as \
services/telemetry/metric_keys.py lists them. A number that does not exist or is not finite is null. \
[My run does not learn](../operate/does-not-learn.md) says which to look at first."""


def page() -> str:
    """Returns the page."""
    rows = [[code(one.name), one.kind, ", ".join(one.roles), _labels(one.labels), one.help]
            for one in CATALOGUE.values()]
    keys = [[code(key), text] for key, text in METRIC_TEXTS.items()]
    return document("Metrics", INTRODUCTION, table(["metric", "type", "from", "labels", "meaning"], rows),
                    "## Keys of metrics.jsonl", KEYS, table(["key", "meaning"], keys))


def _labels(labels: Mapping[str, Bound]) -> str:
    return "; ".join(f"{name}: at most {bound} values" if isinstance(bound, int) else f"{name}: {', '.join(bound)}"
                     for name, bound in labels.items())
