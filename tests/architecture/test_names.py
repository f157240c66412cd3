"""A public class name is used once, and only learner/credit depends on the names of estimators."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
