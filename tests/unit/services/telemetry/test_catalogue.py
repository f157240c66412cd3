

from __future__ import annotations

import re
from itertools import chain

import pytest

from services.errors import AgentFault, EngineFault, EnvFault, StoreFault
from services.telemetry.catalogue import CATALOGUE, DROP_REASONS, reason_class

UNITS = ("_seconds", "_bytes", "_ratio", "_steps", "_groups")
MOST_SERIES = 450
"""Most series of one worker. With 64 workers Prometheus then keeps some tens of thousands, which is easy for it."""


@pytest.mark.parametrize("one", CATALOGUE.values(), ids=lambda one: one.name)
def test_names_follow_the_conventions(one):
    assert re.fullmatch(r"gagpo_[a-z][a-z0-9_]*[a-z]", one.name)
    assert one.name.endswith("_total") == (one.kind == "counter")
    assert bool(one.buckets) == (one.kind == "histogram")
    assert list(one.buckets) == sorted(set(one.buckets))
    assert one.help.endswith(".")
    assert "worker" not in one.labels, "the exposition adds it"
    if one.kind == "histogram":
        assert one.name.endswith((*UNITS, "_size"))


def test_the_series_of_a_worker_are_bounded():
    def series(one) -> int:
        count = len(one.buckets) + 3 if one.kind == "histogram" else 1
        for bound in one.labels.values():
            count *= bound if isinstance(bound, int) else len(bound)
        return count

    roles = set(chain.from_iterable(one.roles for one in CATALOGUE.values()))
    for role in roles:
        assert sum(series(one) for one in CATALOGUE.values() if role in one.roles) < MOST_SERIES, role


@pytest.mark.parametrize("boundary", [fault.boundary for fault in (EnvFault, AgentFault, EngineFault, StoreFault)])
def test_a_drop_is_counted_under_the_boundary_that_failed(boundary: str):
    assert reason_class(f"{boundary}: x") == boundary
    assert boundary in DROP_REASONS
