"""The locks hold what pyproject.toml asks for, each with a hash, and scripts/setup runs from any folder."""

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    loader = importlib.machinery.SourceFileLoader("lock", str(ROOT / "scripts" / "lock"))
    spec = importlib.util.spec_from_loader("lock", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    (tmp_path / "lock-cpu.txt").write_text((ROOT / "scripts" / "lock-cpu.txt").read_text())
    return module


def test_the_locks_are_those_of_the_project():
    done = subprocess.run([sys.executable, ROOT / "scripts/lock", "--check"], capture_output=True, text=True,
                          timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("old", "new", "said"), [
    ("redis==8.1.0 ", "redis==8.0.0 ", "has 8.0.0 of redis, and pyproject.toml asks for redis<9,>=8.1"),
    ("redis==8.1.0 --hash=sha256:", "redis==8.1.0 --hash=md5:", "no package with a hash"),
    ("\nsafetensors==", "\nother==", "has nothing of safetensors")])
def test_a_lock_that_differs_is_named(lock, old: str, new: str, said: str):
    file = lock.path("cpu")
    file.write_text(file.read_text().replace(old, new))
    assert any(said in line for line in lock.check("cpu"))


@pytest.mark.parametrize(("extra", "compiled"), [
    ("cpu", {"aiohttp", "msgspec", "numpy", "pydantic-core", "ray"}), ("cuda", {"torch", "numpy", "ray"}),
    ("dev", {"grimp", "hypothesis"})])
def test_compiled_packages_have_a_hash_for_both_pythons(lock, extra: str, compiled: set[str]):
    """Ubuntu 24.04 has Python 3.12, whose files set-up took without a hash."""
    lines = [lock.LINE.fullmatch(line) for line in (ROOT / f"scripts/lock-{extra}.txt").read_text().splitlines()[1:]]
    assert compiled <= {line[1] for line in lines if line[3].count("--hash") == 2}


def test_the_versions_for_gpus_also_fit_python_3_12(lock):
    """vllm 0.32.0 asks for setuptools<81,>=78.1.1 if python_version > 3.11, so with 84.2.1 pip found no solution."""
    file = lock.path("cuda")
    file.write_text((ROOT / "scripts/lock-cuda.txt").read_text().replace("setuptools==78.1.1 ", "setuptools==84.2.1 "))
    assert [line.partition(", and")[0] for line in lock.check("cuda")] == ["lock-cuda.txt has 84.2.1 of setuptools"]


@pytest.mark.parametrize("call", ["scripts/setup", "tree/scripts/setup", "../scripts/setup", "./setup"])
def test_it_sets_up_from_any_folder(tmp_path: Path, call: str):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / ".venv/bin").mkdir(parents=True)
    (tree / "docs").mkdir()
    for file in (tree / ".venv/bin/python", tree / "scripts/flavour"):
        file.write_text("#!/bin/sh\n[ $# -gt 0 ] || echo cpu\n")
        file.chmod(0o755)
    where = {"tree": tmp_path, "..": tree / "docs", ".": tree / "scripts"}.get(call.partition("/")[0], tree)
    for _ in range(2):
        done = subprocess.run([call], cwd=where, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "set up: .venv/bin/gagpo --help\n", "a second call only compares a hash"
