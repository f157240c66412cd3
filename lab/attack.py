"""`python -m lab.attack [WORD]`: attacks this tree by real processes, and prints which attacks failed.

The attacks are the tests with the mark `attack`, wherever they stand. Each does what an intruder would, and asserts
that it did not work. A WORD picks those whose file or name has it, such as `redis` or `pickled`. An attack that this
machine cannot make, for want of a compiler or of the right to be another user, is `not tried`.

Status 0: all that were tried withstood; 1: one succeeded, or broke; 2: there is none with that word.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = "pytest.mark.attack"
WORDS = {"failed": "FAILED", "passed": "withstood", "skipped": "not tried"}
"""Worst first: an attack is what its worst case is."""


class Table:
    """A plugin of pytest's that prints one line for each test function: the verdict, its cases, its name as words."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._attack = ""
        self._cases: Counter[str] = Counter()
        self._reason = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts a case; a set-up or an end without fault is none."""
        attack = report.nodeid.partition("[")[0]
        if attack != self._attack:
            self.flush()
            self._attack = attack
        if report.outcome != "passed" or report.when == "call":
            self._cases[report.outcome] += 1
        if report.outcome != "passed":
            self._reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)

    def pytest_sessionfinish(self) -> None:
        """Prints the last attack."""
        self.flush()

    def flush(self) -> None:
        """Prints the attack whose cases are complete."""
        if self._cases:
            outcome = next(outcome for outcome in WORDS if self._cases[outcome])
            self.totals[outcome] += 1
            file, _, name = self._attack.partition("::")
            place = file.removeprefix("tests/").removesuffix(".py").replace("test_", "")
            said = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            print(f"{WORDS[outcome]:<10}{sum(self._cases.values()):>4}  {place}: {said}", flush=True)
            if outcome != "passed":
                print("\n".join(f"{'':<16}{line}" for line in self._reason.splitlines()[-12:]), flush=True)
        self._cases.clear()
        self._reason = ""


def main(arguments: list[str]) -> int:
    """Runs the attacks that have the word, or all."""
    if len(arguments) > 1 or any(word.startswith("-") for word in arguments):
        print(f"error: unknown arguments {arguments}; use python -m lab.attack [WORD]", file=sys.stderr)
        return 2
    import pytest

    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the tests end what they started
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")
                   if MARK in file.read_text(encoding="utf-8"))
    table = Table()
    status = pytest.main(
        ["-p", "no:terminal", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib --strict-markers",
         "-m", "attack", *(["-k", arguments[0]] if arguments else []), *files], plugins=[table])
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        print(f"error: no attack has {arguments[0]!r} in its name; python -m lab.attack runs all", file=sys.stderr)
        return 2
    print(", ".join(f"{table.totals[outcome]} {word}" for outcome, word in WORDS.items()))
    return int(status != pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
