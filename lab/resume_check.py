"""`python -m lab.resume_check [N]`: ends a run at N random moments (20), resumes it each time, and compares its weights
with those of an undisturbed run, bit by bit. Takes about half a minute for each resume on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

TEST = Path(__file__).resolve().parents[1] / "tests" / "chaos" / "test_resume.py"

if __name__ == "__main__":
    import pytest

    from deploy.commands.arguments import positive

    parser = argparse.ArgumentParser(prog="python -m lab.resume_check", description=__doc__)
    parser.add_argument("resumes", type=positive, nargs="?", default=20, metavar="N", help="moments (default: 20)")
    os.environ["GAGPO_RESUMES"] = str(parser.parse_args().resumes)
    sys.exit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", str(TEST)]))
