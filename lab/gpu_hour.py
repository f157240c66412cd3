"""`python -m lab.gpu_hour [STAGE ...]`: shows in under ten minutes what only a GPU can show, most telling first.

For one GPU of 141 GB, without a network, from a checkout. Each stage (lab/gpu_stages.py) is a process with a limit of
its own. Each line appears at once on stdout and in OUT/gpu_hour.jsonl, so a script that is cut short has told what it
found. OUT/STAGE.log has what a stage printed. A stage that cannot run says why, and the next one runs.

Where vLLM and Ray are installed, all stages may take more than ten minutes. Those that are left say so, and run in a
second call that names them. With $GAGPO_REAL_MODEL the complete run trains the model in that folder.
Status 1: a line failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.gpu_stages import STAGES, record
from learner.selftest.table import Line
from services.process.child_processes import ending_with_parent

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "gpu_hour.jsonl"
TOTAL_S = 570.0
"""Seconds of all stages together."""
GRACE_S = 15.0
"""Seconds between SIGTERM and SIGKILL for a stage that is stopped."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The process of one stage. The paths of the file of results and of an empty folder end its command."""

    command: Sequence[str]
    limit_s: float


class Results:
    """The file of results. Stages append to it, and what is new is printed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = path.stat().st_size
        self.verdicts: Counter[str] = Counter()

    def show(self) -> None:
        """Prints the lines that are new and complete."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        for row in map(json.loads, new.splitlines()):
            self.verdicts[row["verdict"]] += 1
            text = f"{row['verdict']:<5}{row['stage']:<14}{row['claim']:<42}{row['figure']:<46}{row['aim']}".rstrip()
            print(f"{text}  ({row['seconds']:g} s)", flush=True)

    def add(self, stage: str, line: Line, seconds: float) -> None:
        """Appends a line of the driver's own, and prints it."""
        record(self.path, stage, line, seconds)
        self.show()


def drive(jobs: Mapping[str, Job], out: Path, *, total_s: float = TOTAL_S) -> int:
    """Runs the stages one after another. Returns 1 if a line failed, else 0."""
    out.mkdir(parents=True, exist_ok=True)
    results, end = Results(out / RESULTS), time.monotonic() + total_s
    for name, job in jobs.items():
        left = end - time.monotonic()
        if left > 0:
            run_stage(name, job, results, left)
        else:
            results.add(name, Line(name="not run", value=f"the {total_s:g} s of all stages are over"), 0.0)
    counts = results.verdicts
    print(f"{counts['pass']} passed, {counts['FAIL']} failed, {counts['-']} without a verdict: {results.path}")
    return int(counts["FAIL"] > 0)


def run_stage(name: str, job: Job, results: Results, left: float) -> None:
    """Runs a stage to its end or to its limit, or for the `left` seconds of all stages."""
    started, out = time.monotonic(), results.path.parent
    log = out / f"{name}.log"
    with tempfile.TemporaryDirectory(prefix="gagpo-gpu-hour-", ignore_cleanup_errors=True) as folder:
        with log.open("wb") as output:
            process = subprocess.Popen(
                ending_with_parent([*job.command, str(results.path.resolve()), folder]), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"})
        try:
            while process.poll() is None and time.monotonic() - started < min(job.limit_s, left):
                results.show()
                time.sleep(POLL_S)
            status = process.poll()
        finally:
            end_group(process)
        for inner in Path(folder).glob("*.log"):
            shutil.copyfile(inner, out / f"{name}.{inner.name}")
    results.show()
    if status is None and job.limit_s <= left:
        line = Line(name="ends in time", value=f"stopped after its limit of {job.limit_s:g} s", passed=False)
    elif status is None:
        line = Line(name="cut short", value="the time of all stages is over")
    elif status:
        last = log.read_text(errors="replace", encoding="utf-8").strip().splitlines()[-1:]
        line = Line(name="ends without a fault", value=f"status {status}: {''.join(last)[:200]}", passed=False)
    else:
        return
    results.add(name, line, time.monotonic() - started)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a stage and the processes of its group, so that none holds the GPU when the next stage begins."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a process that waits for a broken device cannot be killed
        process.wait(GRACE_S)


def main() -> int:
    """Runs all stages, or those that are named. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.gpu_hour", description="Shows what only a GPU can show.")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"these alone: {', '.join(STAGES)}")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "runs/gpu-hour"),
                        help="folder of the results; default: $OUT, else runs/gpu-hour")
    args = parser.parse_args()
    if unknown := sorted({*args.stages} - {*STAGES}):
        parser.error(f"there is no stage {', '.join(unknown)}; the stages are {', '.join(STAGES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return drive({name: Job(command=(sys.executable, "-m", "lab.gpu_stages", name), limit_s=stage.limit_s)
                  for name, stage in STAGES.items() if not args.stages or name in args.stages}, args.out)


if __name__ == "__main__":
    sys.exit(main())
