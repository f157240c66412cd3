"""Functions and files are short, public class names are used once, and only learner/credit names estimators."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from services.process.packages import OURS

ROOT = Path(__file__).parents[2]
FILES = sorted(file.relative_to(ROOT) for top in (*OURS, "gagpo", "lab") for file in (ROOT / top).rglob("*.py"))
MAX_FILE, MAX_FUNCTION, HARD_FUNCTION, MAX_POSITIONAL = 700, 40, 60, 5

LONG_FILES: dict[str, str] = {}
"""File -> reason why it may be longer. The limit catches accidents; a module of 400 lines with one story is fine."""

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


def test_no_file_is_longer_than_the_limit():
    files = [*FILES, *(file.relative_to(ROOT) for file in (ROOT / "tests").rglob("*.py"))]
    lines = {str(file): len((ROOT / file).read_text().splitlines()) for file in files}
    assert {file: count for file, count in lines.items() if count >= MAX_FILE and file not in LONG_FILES} == {}


def test_no_function_is_longer_than_the_limit():
    counts = {f"{file}::{node.name}": length(node) for file in FILES for node in functions(file)}
    limits = {name: HARD_FUNCTION if name in LONG_FUNCTIONS else MAX_FUNCTION for name in counts}
    assert {name: count for name, count in counts.items() if count > limits[name]} == {}


def test_few_parameters_are_positional():
    counts = {f"{file}::{node.name}": len([arg for arg in (*node.args.posonlyargs, *node.args.args)
                                           if arg.arg not in ("self", "cls")])
              for file in FILES for node in functions(file)}
    assert {name: count for name, count in counts.items() if count > MAX_POSITIONAL} == {}


def test_no_exception_outlives_its_reason():
    for name in LONG_FILES:
        assert len((ROOT / name).read_text().splitlines()) >= MAX_FILE, name
    for name in LONG_FUNCTIONS:
        file, _, function = name.partition("::")
        assert max(length(node) for node in functions(Path(file)) if node.name == function) > MAX_FUNCTION, name
ROOMS = ("deploy", "envservice", "lab", "learner", "rollout", "services")
ASKED = re.compile(r"(credit|options)\.estimator\s*(==|!=|in\b|\.startswith)")


def modules():
    for room in ROOMS:
        yield from (path for path in (ROOT / room).rglob("*.py"))


def test_only_the_credit_package_compares_the_names_of_estimators():
    """Code that depends on the estimator asks it for its explanation, its legend and the keys that it reads."""
    files = [*modules(), *(ROOT / "deploy").rglob("*.html")]
    found = [f"{path.relative_to(ROOT)}: {line.strip()}" for path in files if "learner/credit" not in str(path)
             for line in path.read_text().splitlines() if ASKED.search(line)]
    assert found == []


def test_no_two_public_classes_share_a_name():
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
