"""The process that runs vLLM, without vLLM."""

import os
import subprocess
import sys

CODE = """
import os, socket
from rollout.engine import process

async def serve(_):
    import setproctitle

    os.environ["FIRST"] = "set again"
    setproctitle.setproctitle("VLLM::EngineCore")
    print(open("/proc/self/cmdline").read().rstrip("\\0"), flush=True)

process._serve = serve
process.main(socket.socketpair()[0].detach())
"""


def test_engine_core_has_its_name_also_if_the_first_variable_was_set_again():
    """Operators look for it, and so do tests. The order of a worker's variables differs from start to start."""
    done = subprocess.run([sys.executable, "-c", CODE], env={"FIRST": "1", **os.environ}, capture_output=True,
                          text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "VLLM::EngineCore\n"), done.stderr
