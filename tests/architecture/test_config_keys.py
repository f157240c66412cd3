"""A new key is a reviewed decision: it changes the list beside this file."""

from pathlib import Path

from services.config_file import config_keys

FROZEN = Path(__file__).with_name("config_keys.txt")


def test_the_keys_are_the_frozen_ones():
    assert list(config_keys()) == FROZEN.read_text().split()
