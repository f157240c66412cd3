"""A new key is a reviewed decision: it changes the list beside this file."""

import re
from pathlib import Path

from services.config.file import config_keys

FROZEN = Path(__file__).with_name("config_keys.txt")
OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
CONFIGS = Path(__file__).parents[2] / "deploy" / "configs"


def test_the_keys_are_the_frozen_ones():
    assert list(config_keys()) == FROZEN.read_text().split()


def documented() -> list[str]:
    """Keys of the table; `.name` behind a key stands for another one of its section."""
    section = OPERATIONS.partition("## Configuration\n")[2].partition("\n## ")[0]
    found: list[str] = []
    for cell in re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE):
        names = re.findall(r"`([a-z_.]+)`", cell)
        found += [names[0].rpartition(".")[0] + name if name.startswith(".") else name for name in names]
    return found


def test_each_key_stands_once_in_the_table_of_operations_and_no_other_does():
    assert sorted(documented()) == sorted(config_keys())


def test_each_config_that_is_shipped_is_named_there():
    assert [path.stem for path in sorted(CONFIGS.glob("*.yaml")) if f"`{path.stem}`" not in OPERATIONS] == []
