"""The metrics of one process: those that its role declares, bounded as declared; counters begin at 0, gauges unset.

A snapshot travels with the heartbeat and keeps Prometheus' own samples, so that histograms and counters stay what they
are; NaN and infinity travel as null. A process that starts again counts from 0 again, which Prometheus understands.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from services.telemetry.names import CATALOGUE, Declared, Role

disable_created_metrics()  # a second series for each counter and histogram, which nobody reads

OTHER = "other"
Snapshot = dict[str, list[tuple[str, dict[str, str], float | None]]]
"""Declared name -> samples: full name, labels, value."""


class Meters:
    """`meters(name, label=value)` is the Counter, Gauge or Histogram to call inc(), set() or observe() of."""

    def __init__(self, role: Role) -> None:
        self.registry = CollectorRegistry()
        self._metrics = {one.name: _make(one, self.registry) for one in CATALOGUE.values() if role in one.roles}
        self._seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._totals: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, **labels: str) -> Any:
        """Raises KeyError for a metric that this role does not declare, ValueError for labels it has not."""
        metric = self._metrics[name]
        if not labels:
            return metric
        return metric.labels(**{label: self._bounded(name, label, value) for label, value in labels.items()})

    def follow(self, name: str, total: float) -> None:
        """Moves a counter by what a count kept elsewhere has grown since the last call; one that was reset adds 0."""
        with self._lock:
            self(name).inc(max(0.0, total - self._totals.get(name, 0.0)))
            self._totals[name] = total

    def _bounded(self, name: str, label: str, value: str) -> str:
        bound = CATALOGUE[name].labels.get(label, ())
        if not isinstance(bound, int):
            if value not in bound:
                raise ValueError(f"{name}: {label}={value!r} is not among {bound}")
            return value
        with self._lock:
            seen = self._seen[name, label]
            if value not in seen and len(seen) >= bound:
                return OTHER
            seen.add(value)
            return value

    def snapshot(self) -> Snapshot:
        """All samples of now."""
        found: Snapshot = defaultdict(list)
        for family in self.registry.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] += [(sample.name, dict(sample.labels), sample.value if math.isfinite(sample.value) else None)
                            for sample in family.samples]
        return dict(found)


def _make(one: Declared, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    names = tuple(one.labels)
    if one.kind == "gauge":
        gauge = Gauge(one.name, one.help, names, registry=registry)
        if not names:
            gauge.set(math.nan)  # a 0 that nobody measured would be an age of fifty years, or no gradient at all
        return gauge
    if one.kind == "histogram":
        metric = Histogram(one.name, one.help, names, registry=registry, buckets=one.buckets)
    else:
        metric = Counter(one.name, one.help, names, registry=registry)
    listed = [bound for bound in one.labels.values() if not isinstance(bound, int)]
    if names and len(listed) == len(names):
        for values in product(*listed):
            metric.labels(*values)
    return metric
