"""The wheel works on its own: from another folder, with nothing of the repository in reach."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git tracks."""
    work = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60,
                             check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (work / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / "tree" / name)
    subprocess.run([sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", work, work / "tree"],
                   timeout=240, check=True)
    return next(work.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder that the wheel is installed to."""
    site = wheel.with_name("site")
    subprocess.run([sys.executable, *PIP, "install", "--no-deps", "--target", site, wheel], timeout=240, check=True)
    return site


def run(installed: Path, folder: Path, *arguments: str) -> str:
    others = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=others | {"PYTHONPATH": str(installed)},
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_command_plans_a_run(installed: Path, tmp_path: Path):
    assert "new-env" in run(installed, tmp_path, str(installed / "bin" / "gagpo"), "--help")
    told = run(installed, tmp_path, "-m", "gagpo", "train", "--config", "alfworld-tiny", "--dry-run")
    assert told.endswith("nothing was started\n")
    assert list(tmp_path.iterdir()) == []


def test_its_library_gives_credit(installed: Path, tmp_path: Path):
    """Two episodes of one turn, and one was rewarded: the advantages are opposite, and the first is the better."""
    code = ("import gagpo, services.store.store, envservice.webshop.spec\n"
            "group = [{'steps': [{'state': 'hall', 'action': a, 'reward': r}]} for a, r in (('x', 1.0), ('y', 0.0))]\n"
            "(good,), (bad,) = gagpo.credit({'episodes': group}).advantages\n"
            "print(gagpo.__file__, services.store.store.__file__, good > 0 > bad)")
    library, store, better = run(installed, tmp_path, "-c", code).split()
    assert Path(library).is_relative_to(installed)
    assert Path(store).is_relative_to(installed)
    assert better == "True"


def find_python(version: str) -> str | None:
    """Returns a Python of that version: this one, one on the path, or one that is installed beside this one."""
    found = (shutil.which(f"python{version}"), *Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    return next((str(python) for python in (sys.executable, *filter(None, found))
                 if subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60,
                                   check=False).stdout.strip() == version), None)


@pytest.mark.long
def test_a_fresh_environment_of_another_python_gives_credit_beside_a_folder_services(wheel: Path, tmp_path: Path):
    """It has what `pip install gagpo` brings, and no extra. The other tests run on this Python."""
    python = find_python("3.11" if sys.version_info >= (3, 12) else "3.12") or sys.executable
    fresh, project = tmp_path / "fresh" / "bin" / "python", tmp_path / "project"
    subprocess.run([python, "-m", "venv", tmp_path / "fresh"], timeout=120, check=True)
    done = subprocess.run([fresh, *PIP, "install", "--retries", "0", "--timeout", "20", wheel], capture_output=True,
                          text=True, timeout=240, check=False)
    if "(from versions: none)" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stderr
    (project / "services").mkdir(parents=True)
    (project / "services" / "__init__.py").touch()
    code = ("import sys, gagpo, services, gagpo.environments, gagpo.integrations.steps\n"
            "group = [{'steps': [{'state': 'hall', 'action': a, 'reward': r}]} for a, r in (('x', 1.0), ('y', 0.0))]\n"
            "(good,), (bad,) = gagpo.credit({'episodes': group}, normalize='none').advantages\n"
            "print(good, bad, services.__file__, {'torch', 'ray', 'vllm'} & sys.modules.keys())")
    done = subprocess.run([fresh, "-c", code], cwd=project, env={}, capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.stdout == f"0.5 -0.5 {project}/services/__init__.py set()\n", done.stderr
