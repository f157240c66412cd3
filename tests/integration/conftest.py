"""Puts tests/toys on the import path of all integration tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "toys"))
