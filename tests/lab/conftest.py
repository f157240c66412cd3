"""Tests of lab/. They belong to the long tier: `make test-all` runs them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "toys"))

from run_records import record, three_seeds

__all__ = ["record", "three_seeds"]
