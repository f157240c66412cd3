"""A new key is a reviewed decision: it changes the list beside this file."""

from pathlib import Path

from services.config.keys import config_keys

FROZEN = Path(__file__).with_name("config_keys.txt")
ROOT = Path(__file__).parents[2]


def test_the_keys_are_the_frozen_ones():
    assert list(config_keys()) == FROZEN.read_text().split()


def test_each_config_that_is_shipped_is_named_in_the_docs():
    docs = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    shipped = sorted((ROOT / "deploy" / "configs").glob("*.yaml"))
    assert [path.stem for path in shipped if f"`{path.stem}`" not in docs] == []
