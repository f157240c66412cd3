"""Tracked files name no machine and contain no leftovers. Docstrings begin with a subject or a verb."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False).stdout.splitlines()
PLACES = re.compile(r"/(?:work|home/\w+|root|Users/\w+)/|/tmp/\w|file:///")
BESIDE = re.compile(r"\.\./shared")
OFFICIAL = ("envservice/alfworld/domain.pddl", "envservice/alfworld/grammar.twl2")
"""ALFWorld's own texts. They are part of each official game and of every digest, so they are never changed."""
LEFTOVERS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|^(?:<{7}|>{7}) ", re.MULTILINE)


def texts(*but: str) -> dict[str, str]:
    """Returns the tracked text files, without this one, which has the patterns, and without `but`."""
    here = str(Path(__file__).relative_to(ROOT))
    names = [name for name in TRACKED if name not in (here, *but) and (ROOT / name).is_file()]
    files = {name: (ROOT / name).read_bytes() for name in names}
    return {name: data.decode() for name, data in files.items() if b"\0" not in data}


def test_files_are_tracked():
    assert "pyproject.toml" in TRACKED


def test_no_path_of_a_machine_is_written_down():
    assert {name: found[0] for name, text in texts().items() if (found := PLACES.search(text))} == {}


def test_only_the_verification_looks_beside_the_clone():
    assert [name for name, text in texts(".ci/run").items() if BESIDE.search(text)] == []


def test_no_leftover_is_tracked():
    assert {name: found[0] for name, text in texts(*OFFICIAL).items() if (found := LEFTOVERS.search(text))} == {}


FROZEN = "envservice/alfworld/generator"
"""Prefix of the files whose bytes are part of game digests."""
FRAGMENT = re.compile(r"(?:Of|What) ")


def test_no_docstring_is_a_fragment():
    """A docstring that begins with `Of` or `What` does not name the thing that it describes."""
    found = [f"{name}:{node.lineno}: {node.value.value.splitlines()[0]}"
             for name in TRACKED if name.endswith(".py") and not name.startswith(FROZEN)
             for node in ast.walk(ast.parse((ROOT / name).read_text()))
             if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
             and isinstance(node.value.value, str) and FRAGMENT.match(node.value.value)]
    assert found == []


def test_no_name_of_a_test_begins_with_what_or_who():
    """Such a name does not say which thing it is about."""
    found = [f"{name}: {test}" for name in TRACKED if name.startswith("tests/") and name.endswith(".py")
             and (ROOT / name).is_file()
             for test in re.findall(r"def (test_(?:what|who|nobody|somebody)_\w+)", (ROOT / name).read_text())]
    assert found == []
