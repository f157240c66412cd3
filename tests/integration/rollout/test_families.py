"""Tiny random models of published families, through learner, export and vLLM: each does what docs/models.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.models import HEAD, PAGE, table_row
from lab.bench.tiny_families import FAMILIES, Family

pytestmark = pytest.mark.vllm

USUAL = "Qwen2, Qwen2.5"
"""The family of the shipped configs."""
UNLIKE = ("Gemma 4", "Phi 2", "Phi 3, Phi 4")
"""Families that vLLM updates in other ways: without a separate head, with a bias of the head, with fused projections.
Each takes an engine. `python -m lab.bench.models` plays all, after a change of vLLM or of rollout/engine/extension.py;
tests/parity/learner/test_families.py has what the learner makes of all."""


def documented() -> dict[str, tuple[str, str]]:
    """Returns family -> (special features, result) of the page's table."""
    rows = PAGE.read_text().partition(HEAD)[2].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: (features, result) for name, features, result, *_ in cells}


def test_the_page_has_all_families_and_no_others():
    assert [*documented()] == [family.name for family in FAMILIES]


@pytest.mark.parametrize("family", [
    pytest.param(one, id=one.name, marks=() if one.name == USUAL else pytest.mark.long)
    for one in FAMILIES if one.name in (USUAL, *UNLIKE)])
def test_a_family_works_or_is_refused_as_the_page_says(family: Family, tmp_path: Path):
    name, features, result = (cell.strip() for cell in table_row(family, tmp_path).split("|")[1:4])
    assert (features, result) == documented()[name]
