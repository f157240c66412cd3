"""The learner's self-test at a tiny size, on a machine that has neither Ray, vLLM nor Redis."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from learner.selftest.checks import same
from learner.selftest.scene import TINY, groups
from learner.selftest.table import Line, attempt

ROOT = Path(__file__).parents[3]
SMALL = {"blake3", "msgspec", "pydantic", "zstandard"}
"""The packages that lab/records/performance.md asks for beside torch and transformers."""
THEIRS = {"huggingface_hub", "jinja2", "numpy", "packaging", "psutil", "regex", "rich", "safetensors", "tokenizers",
          "torch", "transformers"}
"""Those of our dependencies that torch and transformers install, or use where they are."""
WITHOUT = """
import atexit, runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "vllm", "redis", "fastapi", "structlog", "httpx", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
atexit.register(lambda: print("imported", *sorted({name.partition(".")[0] for name in sys.modules})))
runpy.run_module("learner.selftest", run_name="__main__")
"""


def test_every_check_passes_at_a_tiny_size():
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=os.environ | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "FAIL" not in done.stdout
    for name in ("128 tokens a pack: three steps", "|dlogp| against float32 eager", "a step after loading",
                 "LoRA, |dlogp| of merged weights", "the update with moments on the host", "a step after that",
                 "cold start on a rank"):
        assert any(line.startswith(f"pass {name}") for line in lines), name
    for name in ("bfloat16 matrix product", "attention, rectangle", "compiled layers", "pack the weights",
                 "save, first time", "save during a step", "candidates", "a step under the profiler",
                 "states to host memory, second turn"):
        assert any(line.startswith(f"-    {name}") for line in lines), name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {re.split(r"[\[<>=]", one)[0].replace("-", "_")
            for one in project["dependencies"] + project["optional-dependencies"]["train"]}
    assert ours & set(lines[-1].split()[1:]) - THEIRS == SMALL
    asked = (ROOT / "lab/records/performance.md").read_text().partition("Besides torch")[2].partition("So it runs")[0]
    assert all(f"`{name}`" in asked for name in SMALL)


def test_named_checks_run_alone_and_a_wrong_name_is_told():
    def run(*names):
        return subprocess.run([sys.executable, "-m", "learner.selftest", *names], env=os.environ | {
            "OMP_NUM_THREADS": "1"}, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)

    done = run("cold-start", "candidates")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[5:32].strip() for line in done.stdout.splitlines()] == [
        "device", "bfloat16 matrix product", "cold start on a rank", "candidates"]
    done = run("save", "sampler")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "there is no check sampler; the checks are device, steps, numerics, attention, compile, lora, cold-start, "
        "offload, parking, candidates, operations, save")


def test_kernels_with_equal_results_and_other_gradients_are_not_the_same():
    """The line held the results alone, and training has no other check of the kernel's backward pass."""
    expected = [torch.tensor([1.0, -4.0]), torch.tensor([0.5, 2.0]), torch.tensor([3.0, 1.0])]
    found = [one.clone() for one in expected]
    assert same("kernels", found, expected, 0.02).passed
    found[1][0] += 0.05
    line = same("kernels", found, expected, 0.02)
    assert (line.passed, line.value) == (False, "largest difference 0.025")
    found[1][0] = torch.nan
    assert same("kernels", found, expected, 0.02).passed is False


def test_prompts_have_the_same_length_unless_the_scene_spreads_them():
    def prompts(**sizes: int) -> list[int]:
        (episodes,) = groups(replace(TINY, **sizes), 400)
        return [len(step.prompt_ids) for episode in episodes for step in episode.steps]

    assert prompts() == [TINY.prompt] * 400
    spread = prompts(prompt=550, spread=150)
    assert abs(np.mean(spread) - 550) < 4 * 150 / 400**0.5
    assert 130 < np.std(spread) < 170
    assert min(prompts(prompt=2, spread=150)) == 1


def test_a_check_that_breaks_is_a_line_and_the_lines_before_it_stay():
    def breaks():
        yield Line(name="first", value="1")
        raise RuntimeError("no memory")

    first, broken = attempt("second", breaks)
    assert first.name == "first"
    assert broken.passed is False
    assert broken.value.startswith("RuntimeError: no memory (test_selftest.py:")
    assert str(broken).startswith("FAIL second")
