"""docs/reference/ matches the code. After a change run `python -m lab.reference` (or `make docs`)."""

import re

import pytest

from deploy.cli import build_parser
from lab.reference import FOLDER, code, docstrings, pages, sections, table
from learner.credit.registry import ESTIMATORS, option_tables
from services.config.keys import config_keys
from services.config.sections import CreditSection
from services.telemetry.catalogue import CATALOGUE
from services.telemetry.metrics_file import METRIC_KEYS

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_gives(name: str):
    assert (FOLDER / name).read_text() == PAGES[name], "run: python -m lab.reference"


def test_no_other_page_is_there():
    assert {page.name for page in FOLDER.iterdir()} == set(PAGES)


def test_each_config_key_has_one_row():
    """And each option of an estimator or a state key one below each that has it, or has another default."""
    shared = {name: field.default for name, field in CreditSection.model_fields.items()}
    options = [f"learner.credit.{name}" for options in option_tables()
               for name, field in options.model.model_fields.items() if shared.get(name, ...) != field.default]
    shown = re.findall(r"^\| `([a-z_.]+)` \|", PAGES["configuration.md"], re.MULTILINE)
    assert sorted(shown) == sorted([*config_keys(), *options])
    assert "Undefined" not in PAGES["configuration.md"], "pydantic's word where a factory makes the default"


def test_each_estimator_is_introduced_by_a_sentence_of_its_own():
    sentences = re.findall(r"^## learner\.credit: estimator \w+\n\n(.+)$", PAGES["configuration.md"], re.MULTILINE)
    assert len(sentences) == len(set(sentences)) == len(ESTIMATORS)


def test_each_config_key_has_a_docstring():
    bare = [f"{name}.{key}" for name, section in sections() for key in section.model_fields
            if not key.startswith("_") and key not in docstrings(section) and not hasattr(
                section.model_fields[key].annotation, "model_fields")]
    assert bare == []


def test_each_metric_and_each_command_is_there():
    assert [name for name in CATALOGUE if f"| `{name}` |" not in PAGES["metrics.md"]] == []
    assert [name for name in build_parser().commands if f"## gagpo {name}\n" not in PAGES["commands.md"]] == []


def test_each_key_of_the_metrics_file_is_there_in_one_sentence():
    shown = dict(re.findall(r"^\| `([a-z0-9_/]+)` \| ([^|]+) \|$", PAGES["metrics.md"], re.MULTILINE))
    assert list(shown) == list(METRIC_KEYS)
    assert [text for text in shown.values() if not re.fullmatch(r"[A-Z][^.]*(\.[a-z_]+[^.]*)*\.", text)] == []


def test_a_cell_cannot_break_its_table():
    assert table(["a"], [["x | y\nz"]]).splitlines()[-1] == r"| x \| y z |"


def test_code_with_a_bar_shows_no_backslash_in_a_cell():
    assert table(["a"], [[code("MODEL|RUN")]]).splitlines()[-1] == "| <code>MODEL&#124;RUN</code> |"
