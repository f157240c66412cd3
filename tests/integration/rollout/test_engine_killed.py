"""A rollout worker that is killed while its vLLM engine starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from services.process.guard import processes_in

pytestmark = pytest.mark.vllm

STARTING = """
import asyncio, sys
from pathlib import Path
from rollout.engine import Engine
from services.config.rollout import RolloutSection
from services.records import Version
async def main():
    config = RolloutSection(slots=2, max_prompt_tokens=64, max_response_tokens=16, kv_cache_gb=0.05, threads=1)
    await Engine(Path(sys.argv[1]), Version(incarnation=0, step=0), config=config, dtype="float32", load=False).start()
    await asyncio.sleep(600)  # a machine may start it faster than the test looks
if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_worker_killed_while_its_engine_starts_leaves_neither_process_nor_folder(tied_folder, tmp_path):
    script = tmp_path / "start.py"
    script.write_text(STARTING)
    temporary = Path(tempfile.mkdtemp())
    worker = subprocess.Popen(
        [sys.executable, str(script), str(tied_folder)],
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)})
    deadline = time.monotonic() + 280
    while not (folders := [f for f in temporary.glob("gagpo-engine-*") if processes_in(str(f))]):
        assert time.monotonic() < deadline
        assert worker.poll() is None
        time.sleep(0.05)
    worker.kill()
    worker.wait()
    while folders[0].exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert processes_in(str(folders[0])) == []
    temporary.rmdir()  # raises if anything is left
