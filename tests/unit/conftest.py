"""Fixtures for unit tests of several folders."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collector import Collector

sys.path.insert(0, str(Path(__file__).parents[1] / "toys"))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator["Collector"]:
    """Provides a receiver of traces, which this process gives enough time on a busy machine."""
    from collector import Collector

    for name in ("EXPORT_S", "STOP_S"):
        monkeypatch.setattr(f"services.telemetry.spans.{name}", 60.0)
    with Collector() as made:
        yield made
