"""Every command is listed, has a help text, and shows an example."""

import argparse

import pytest

from deploy.cli import build_parser

COMMANDS = next(
    action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)).choices
PROMISED = ("train", "sft", "eval", "tasks", "play", "prompt", "new-env", "serve-env", "serve-agent", "credit",
            "status", "scale", "audit", "explore", "report", "monitor", "export", "doctor", "selftest")


def test_the_commands_are_those_that_were_promised():
    assert set(COMMANDS) == set(PROMISED)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_command_holds_an_example_of_it(name: str):
    text = COMMANDS[name].format_help()
    assert f"gagpo {name}" in text.partition("example")[2]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_has_one_line_of_help_and_something_to_run(name: str):
    assert COMMANDS[name].get_default("run") is not None
    assert COMMANDS[name].description


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_argument_of_a_command_says_what_it_means(name: str):
    if complete := COMMANDS[name].get_default("complete"):
        complete(COMMANDS[name])
    assert [action.dest for action in COMMANDS[name]._actions if not action.help] == []


@pytest.mark.parametrize("name", sorted(
    set(COMMANDS) - {"play", "new-env", "serve-env", "serve-agent", "sft", "train", "export", "explore", "monitor"}))
def test_every_command_that_prints_results_prints_json_too(name: str):
    assert "--json" in COMMANDS[name].format_help()
