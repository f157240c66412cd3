"""TRL's trainer with step-level credit (trl_cases.py), in a process of its own.

transformers remembers from its import whether accelerate is there, and the other tests have none.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from third_party import TEMPLATES

CASES = Path(__file__).with_name("trl_cases.py")


@pytest.mark.skipif(TEMPLATES is None, reason="TRL is not installed (scripts/setup --test)")
def test_the_trainer_of_trl_trains_with_credit_per_step():
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)],
                          capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"2\d passed", done.stdout), done.stdout[-2000:]
