"""The adapter protects the process from the shipped engine. The parity test checks that it plays correctly."""

import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from envservice.alfworld import textworld_engine
from envservice.alfworld.environment import open_environment
from envservice.alfworld.generator import generate
from services.config.env import AlfworldSection, EnvSection
from services.errors import UserError


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textworld" else find_spec(name))
    with pytest.raises(UserError, match=r"needs the package \w+; install it with `pip install 'gagpo\[alfworld\]'`"):
        open_environment(EnvSection(alfworld=AlfworldSection(engine="textworld")))


def test_threads_play_at_once_and_the_process_keeps_its_arguments_and_environment(monkeypatch):
    try:
        textworld_engine.require_textworld()
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    arguments, output = sys.argv, sys.stdout

    def play(index):
        data = generate("valid", index)
        session = textworld_engine.TextworldSession(data)
        return [session.reset(), *map(session.step, data["walkthrough"])][-1]

    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(play, range(2)))
    assert [(end.won, end.done, end.reward) for end in ends] == [(True, True, 1.0)] * 2
    assert sys.argv is arguments
    assert sys.stdout is output
    assert "ALFWORLD_DATA" not in os.environ
