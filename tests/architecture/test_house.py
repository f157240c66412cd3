"""The tree in docs/architecture.md matches the folders, and the paths in CONTRIBUTING.md exist."""

import re
import subprocess
import tomllib
from pathlib import Path

from services.process.packages import OURS

ROOT = Path(__file__).parents[2]
TREE = re.search(r"## The tree\n.*?```text\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
LISTING = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, timeout=120, check=True).stdout
FILES = [Path(name) for name in LISTING.splitlines() if (ROOT / name).is_file()]


def drawn() -> list[str]:
    """Returns the folders of the drawing, each with its parent folders."""
    assert TREE is not None
    found, house = [], ""
    for line in TREE[1].splitlines():
        name = line.split()[0].removesuffix("/")
        house = house if line.startswith(" ") else name
        found.append(f"{house}/{name}" if line.startswith(" ") else name)
    return found


def test_each_folder_of_the_tree_is_drawn_once():
    tops = {path.parts[0] for path in FILES if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    houses = (*OURS, "gagpo", "lab")
    rooms = {"/".join(path.parts[:2]) for path in FILES if path.parts[0] in houses and len(path.parts) > 2}
    assert sorted(drawn()) == sorted(tops | rooms)


def test_deploy_has_one_module_at_its_root_and_few_folders():
    inside = [path for path in FILES if path.parts[0] == "deploy"]
    assert {path.name for path in inside if len(path.parts) == 2} == {"__init__.py", "cli.py"}
    assert len({path.parts[1] for path in inside if len(path.parts) > 2}) <= 16


def test_ten_questions_are_answered_by_paths_that_exist():
    questions = CONTRIBUTING.partition("ten questions\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", questions, re.MULTILINE)
    assert len(rows) == 10
    assert all("`" in answer for _, answer in rows)
    paths = re.findall(r"`([\w.-]+/[\w./-]*)`", CONTRIBUTING)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_modules_that_are_said_to_be_run_exist():
    modules = re.findall(r"`python -m ([\w.]+)`", CONTRIBUTING)
    assert modules
    places = [ROOT / name.replace(".", "/") for name in modules]
    assert [place for place in places
            if not (place.with_suffix(".py").exists() or (place / "__main__.py").exists())] == []


def test_layers_are_those_that_the_import_linter_checks():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [" > ".join(contract["layers"]) for contract in contracts if contract["type"] == "layers"]
    assert len(layers) == 3
    assert re.findall(r"`([\w |]+ > [\w |>]+)`", CONTRIBUTING) == layers
