"""Trainers of others with step-level credit (trl_cases.py, verl_cases.py, skyrl_cases.py), each in a process of its
own: transformers remembers from its import whether accelerate is there, and the packages of others are on the path of
that process alone.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from third_party import SITE, TEMPLATES

CASES = Path(__file__).with_name("trl_cases.py")


@pytest.mark.skipif(TEMPLATES is None, reason="TRL is not installed (scripts/setup --test)")
def test_the_trainer_of_trl_trains_with_credit_per_step():
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)],
                          capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"2\d passed", done.stdout), done.stdout[-2000:]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("trainer", ["verl", "skyrl"])
def test_the_trainer_gives_each_step_its_own_advantage(trainer: str):
    if SITE is None or not (SITE / trainer).exists():
        pytest.skip(f"{trainer} is not installed (scripts/setup --test)")
    cases = Path(__file__).with_name(f"{trainer}_cases.py")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
                          capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout, done.stdout[-2000:]
