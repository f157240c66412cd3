"""The wheel works on its own: from another folder, with nothing of the repository in reach."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel of what git tracks is installed to."""
    work = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60,
                             check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (work / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, work / "tree" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", work, work / "tree"], timeout=240,
                   check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", work / "site", *work.glob("*.whl")], timeout=240,
                   check=True)
    return work / "site"


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
