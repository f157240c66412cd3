"""The metrics of one process: those that its role declares. Counters start at 0, gauges without a value.

The heartbeat carries a snapshot of Prometheus' own samples, so that histograms and counters keep their type; NaN and
infinity become null. A process that restarts counts from 0 again, which Prometheus handles.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from services.telemetry.catalogue import CATALOGUE, Declared, Role, Snapshot

disable_created_metrics()  # else each counter and histogram has a second, unused series

OTHER = "other"


class Meters:
    """The meters of a role. `meters(name, label=value)` returns the Counter, Gauge or Histogram with these labels."""

    def __init__(self, role: Role) -> None:
        self.registry = CollectorRegistry()
        self._metrics = {one.name: _make(one, self.registry) for one in CATALOGUE.values() if role in one.roles}
        self._seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._totals: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str, **labels: str) -> Any:
        """Returns a meter. Raises KeyError if the role does not declare it, ValueError if a label is not declared."""
        metric = self._metrics[name]
        if not labels:
            return metric
        return metric.labels(**{label: self._bounded(name, label, value) for label, value in labels.items()})

    def follow(self, name: str, total: float) -> None:
        """Adds to a counter the growth of `total` since the last call. If `total` was reset in between, it adds 0."""
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
        """Returns all present samples."""
        meters: Snapshot = defaultdict(list)
        for family in self.registry.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            meters[name] += [(sample.name, dict(sample.labels), sample.value if math.isfinite(sample.value) else None)
                             for sample in family.samples]
        return dict(meters)


def _make(one: Declared, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    names = tuple(one.labels)
    if one.kind == "gauge":
        gauge = Gauge(one.name, one.help, names, registry=registry)
        if not names:
            gauge.set(math.nan)  # 0 would look measured: an age of fifty years, or no gradient at all
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
