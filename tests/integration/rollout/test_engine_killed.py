"""A rollout worker that is killed while its vLLM engine starts, and an engine that dies while nobody asks it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from byte_tokenizer import byte_tokenizer

from rollout.agents.standalone_endpoint import ServedPolicy, serve_agents
from rollout.engine.engine import Engine
from services.config.file import default_config
from services.config.sections import RolloutSection
from services.errors import EngineFault
from services.process.guard import processes_in
from services.records import Version

pytestmark = pytest.mark.vllm

STARTING = """
import asyncio, sys
from pathlib import Path
from rollout.engine.engine import Engine
from services.config.sections import RolloutSection
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


async def test_the_death_of_an_engine_ends_work_that_asks_nothing_of_it(tied_folder, tmp_path, monkeypatch):
    """A worker that waited for environment servers did so with a dead engine for as long as they were away.

    The path of temporary files is as long as that of a batch system's job, and the engine starts all the same. The
    kernel takes 107 characters as the path of a socket.
    """
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    others = engine_cores()
    config = RolloutSection(slots=2, max_prompt_tokens=64, max_response_tokens=16, kv_cache_gb=0.05, threads=1)
    engine = Engine(tied_folder, Version(incarnation=0, step=0), config=config, dtype="float32", load=False)
    try:
        await engine.start()
        (core,) = engine_cores() - others
        assert await engine.while_alive(asyncio.sleep(0, "done")) == "done"
        waiting = asyncio.create_task(engine.while_alive(asyncio.sleep(600)))
        await asyncio.sleep(0)
        core.kill()
        with pytest.raises(EngineFault, match="vLLM's process died"):
            async with asyncio.timeout(120):
                await waiting
    finally:
        await engine.close()


async def test_the_death_of_an_engine_ends_the_endpoint_of_agents_that_nobody_asks(tied_folder, tmp_path):
    """It said that it was healthy until a client lost its episode, and only then it ended."""
    folder = shutil.copytree(tied_folder, tmp_path / "model")
    byte_tokenizer().save_pretrained(folder)
    config = default_config(["rollout.slots=2", "rollout.max_prompt_tokens=64", "rollout.max_response_tokens=16",
                             "rollout.kv_cache_gb=0.05", "rollout.threads=1", "model.dtype=float32"])
    others = engine_cores()

    def kill_core(_: object) -> None:
        (core,) = engine_cores() - others
        core.kill()

    served = ServedPolicy(config=config, model=folder, host="127.0.0.1", port=0, token=None, with_env=False, out=None)
    with pytest.raises(EngineFault, match="vLLM's process died"):
        async with asyncio.timeout(280):
            await serve_agents(served, kill_core)


@pytest.mark.long
def test_an_endpoint_of_agents_that_is_interrupted_while_its_engine_loads_ends_at_once(tied_folder, tmp_path):
    """It does not load to the end first."""
    temporary = Path(tempfile.mkdtemp())
    endpoint = start_endpoint(tied_folder, tmp_path / "model", temporary)
    deadline = time.monotonic() + 280
    while not [f for f in temporary.glob("gagpo-engine-*") if processes_in(str(f))]:
        assert time.monotonic() < deadline
        assert endpoint.poll() is None
        time.sleep(0.05)
    endpoint.send_signal(signal.SIGINT)
    assert endpoint.communicate(timeout=280) == ("", "")
    assert endpoint.returncode == 0
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


def test_an_endpoint_of_agents_that_is_terminated_while_it_serves_ends_as_other_servers_do(tied_folder, tmp_path):
    temporary = Path(tempfile.mkdtemp())
    endpoint = start_endpoint(tied_folder, tmp_path / "model", temporary)
    assert " on http://127.0.0.1:" in endpoint.stdout.readline()
    endpoint.send_signal(signal.SIGTERM)
    assert endpoint.communicate(timeout=280) == ("", "")
    assert endpoint.returncode == 143
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


def start_endpoint(model: Path, copy: Path, temporary: Path) -> subprocess.Popen[str]:
    """Starts `gagpo serve-agent` with a copy of the model, and `temporary` for its temporary files."""
    folder = shutil.copytree(model, copy)
    byte_tokenizer().save_pretrained(folder)
    command = [sys.executable, "-m", "deploy.cli", "serve-agent", str(folder), "--no-env", "--port", "0",
               "rollout.slots=2", "rollout.max_prompt_tokens=64", "rollout.max_response_tokens=16",
               "rollout.kv_cache_gb=0.05", "rollout.threads=1", "model.dtype=float32"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)})


def engine_cores() -> set[psutil.Process]:
    """Returns vLLM's processes below this one. Engines of other tests may live to the end of the session."""
    below = psutil.Process().children(recursive=True)
    return {child for child in below if "EngineCore" in "".join(child.cmdline()[:1])}
