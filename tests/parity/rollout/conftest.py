"""Puts tests/toys and this folder on the import path: test_second_runner.py runs tests of test_engine.py."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "toys"), str(Path(__file__).parent)]
