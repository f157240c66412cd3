from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from services.telemetry.names import CATALOGUE, table, with_table

PAGE = Path(__file__).parents[4] / "docs/operations.md"
UNITS = ("_seconds", "_bytes", "_ratio", "_steps", "_groups")
MOST_SERIES = 450
"""Of one worker. With 64 workers Prometheus then keeps some tens of thousands of series, which it does with ease."""


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


def test_the_page_shows_the_catalogue():
    """Where it does not: python -m services.telemetry.names docs/operations.md"""
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page
    assert all(f"| `{name}` |" in table() for name in CATALOGUE)


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="metrics: begin"):
        with_table("# A page")
