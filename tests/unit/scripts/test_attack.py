"""scripts/attack in its short form; the whole list takes minutes."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["pickled-checkpoint", "secret-in-copies", "two-processes", "hostile-clients"])
def test_the_tree_withstands(name: str):
    done = subprocess.run([ROOT / "scripts/attack", name], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "withstood" in done.stdout


def test_an_unknown_attack_is_one_line():
    done = subprocess.run([ROOT / "scripts/attack", "none"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
