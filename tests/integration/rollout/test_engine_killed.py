"""A rollout worker that is killed while its vLLM engine starts, and an engine that dies while nobody asks it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from rollout.engine import Engine
from services.config.rollout import RolloutSection
from services.errors import EngineFault
from services.process.guard import processes_in
from services.records import Version

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


async def test_the_death_of_an_engine_ends_work_that_asks_nothing_of_it(tied_folder):
    """A worker that waited for environment servers did so with a dead engine for as long as they were away."""
    config = RolloutSection(slots=2, max_prompt_tokens=64, max_response_tokens=16, kv_cache_gb=0.05, threads=1)
    engine = Engine(tied_folder, Version(incarnation=0, step=0), config=config, dtype="float32", load=False)
    await engine.start()
    try:
        (core,) = (child for child in psutil.Process().children(recursive=True) if "EngineCore" in child.cmdline()[0])
        assert await engine.while_alive(asyncio.sleep(0, "done")) == "done"
        waiting = asyncio.create_task(engine.while_alive(asyncio.sleep(600)))
        await asyncio.sleep(0)
        core.kill()
        with pytest.raises(EngineFault, match="vLLM's process died"):
            async with asyncio.timeout(120):
                await waiting
    finally:
        await engine.close()
