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
def collector() -> Iterator["Collector"]:
    """Provides a receiver of traces."""
    from collector import Collector

    with Collector() as made:
        yield made
