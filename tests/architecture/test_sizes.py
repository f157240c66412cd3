"""Files and functions are short. An exception needs its reason here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.process.packages import OURS

ROOT = Path(__file__).parents[2]
FILES = sorted(file.relative_to(ROOT) for top in (*OURS, "gagpo") for file in (ROOT / top).rglob("*.py"))
MAX_FILE, MAX_FUNCTION, HARD_FUNCTION, MAX_POSITIONAL = 300, 40, 60, 5

LONG_FILES: dict[str, str] = {}
"""File -> reason why it may be longer than 300 lines."""

LONG_FUNCTIONS: dict[str, str] = {}
"""file::function -> reason why it may have up to 60 lines."""


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the number of lines from `def` on, without decorators and docstring."""
    last, first = node.end_lineno or node.lineno, node.lineno
    text = node.body[0]
    if ast.get_docstring(node) is None or text.end_lineno is None:
        return last - first + 1
    return last - first + 1 - (text.end_lineno - text.lineno + 1)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_is_shorter_than_the_limit(file: Path):
    lines = len((ROOT / file).read_text().splitlines())
    assert lines < MAX_FILE or str(file) in LONG_FILES, f"{lines} lines"


def test_files_of_tests_are_shorter_than_the_limit():
    files = {file.relative_to(ROOT): len(file.read_text().splitlines()) for file in (ROOT / "tests").rglob("*.py")}
    assert {str(file): lines for file, lines in files.items() if lines >= MAX_FILE} == {}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_no_function_of_a_file_is_longer_than_the_limit(file: Path):
    for node in functions(file):
        limit = HARD_FUNCTION if f"{file}::{node.name}" in LONG_FUNCTIONS else MAX_FUNCTION
        assert length(node) <= limit, f"{node.name} has {length(node)} lines"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_few_parameters_are_positional(file: Path):
    for node in functions(file):
        names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls")]
        assert len(names) <= MAX_POSITIONAL, f"{node.name} has {len(names)}"


def test_no_exception_outlives_its_reason():
    for name in LONG_FILES:
        assert len((ROOT / name).read_text().splitlines()) >= MAX_FILE, name
    for name in LONG_FUNCTIONS:
        file, _, function = name.partition("::")
        assert max(length(node) for node in functions(Path(file)) if node.name == function) > MAX_FUNCTION, name
