"""`python -m lab.attack` runs the tests with the mark `attack` and prints a line for each."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.attack import Table

ROOT = Path(__file__).parents[2]


def attack(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "lab.attack", *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=280, check=False)


def test_an_attack_that_is_named_is_made():
    done = attack("nothing_is_unpickled")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "withstood    1  unit/learner/checkpoints/state_files: nothing is unpickled",
        "0 FAILED, 1 withstood, 0 not tried"]


@pytest.mark.parametrize("arguments", [["no_such_attack"], ["--fast"], ["a", "b"]])
def test_an_unknown_attack_is_refused_in_one_line(arguments: list[str]):
    done = attack(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_attack_is_what_its_worst_case_is(capsys: pytest.CaptureFixture[str]):
    table = Table()
    for case, when, outcome, said in (
            ("a", "setup", "passed", ""), ("a", "call", "passed", ""), ("b", "call", "failed", "it ran"),
            ("c", "setup", "skipped", ("file", 1, "no compiler"))):
        name = "test_x" if case in "ab" else "test_y"
        table.pytest_runtest_logreport(SimpleNamespace(
            nodeid=f"tests/t/test_z.py::{name}[{case}]", when=when, outcome=outcome, longrepr=said))
    table.pytest_sessionfinish()
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["FAILED", "2", "t/z:", "x"], ["it", "ran"], ["not", "tried", "1", "t/z:", "y"], ["no", "compiler"]]
