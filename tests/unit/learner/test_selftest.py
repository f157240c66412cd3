"""The learner's self-test at a tiny size, on a machine that has neither Ray, vLLM nor Redis."""

import os
import subprocess
import sys

from learner.selftest.table import Line, attempt

WITHOUT = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "vllm", "redis", "fastapi", "structlog", "httpx", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
runpy.run_module("learner.selftest", run_name="__main__")
"""


def test_every_check_passes_at_a_tiny_size():
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=os.environ | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "FAIL" not in done.stdout
    for name in ("128 tokens a pack: three steps", "|dlogp| against float32 eager", "a step after loading",
                 "LoRA, |dlogp| of merged weights", "the update with moments on the host", "a step after that"):
        assert any(line.startswith(f"pass {name}") for line in lines), name
    for name in ("bfloat16 matrix product", "attention, rectangle", "pack the weights", "save", "candidates",
                 "states to host memory, second turn"):
        assert any(line.startswith(f"-    {name}") for line in lines), name


def test_a_check_that_breaks_is_a_line_and_the_lines_before_it_stay():
    def breaks():
        yield Line(name="first", found="1")
        raise RuntimeError("no memory")

    first, broken = attempt("second", breaks)
    assert first.name == "first"
    assert broken.passed is False
    assert broken.found.startswith("RuntimeError: no memory (test_selftest.py:")
    assert str(broken).startswith("FAIL second")
