"""Puts tests/toys on the path, for all tests below."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "toys"))
