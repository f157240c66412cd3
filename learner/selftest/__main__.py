"""`python -m learner.selftest [CHECK ...]`: prints the table, and exits with 1 if a line fails."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from services.process.env_variables import limit_openmp_spin


def main() -> int:
    """Runs the named checks, or all, on the first GPU, or at a tiny size on the CPU."""
    limit_openmp_spin()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from learner.selftest.run import CHECKS, run

    parser = argparse.ArgumentParser(prog="python -m learner.selftest", description="Measures the learner on one GPU.")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"only these, after device: {', '.join(CHECKS)}")
    chosen = parser.parse_args().checks or CHECKS
    if unknown := sorted({*chosen} - {*CHECKS}):
        parser.error(f"there is no check {', '.join(unknown)}; the checks are {', '.join(CHECKS)}")

    with tempfile.TemporaryDirectory(prefix="gagpo-selftest-") as folder:
        failed = 0
        for line in run(Path(folder), names=chosen):
            print(line, flush=True)
            failed += line.passed is False
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
