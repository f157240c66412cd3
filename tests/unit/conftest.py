"""Makes the toys importable for unit tests of several folders."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "toys"))
