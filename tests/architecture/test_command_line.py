"""Every command is listed, has a help text, and shows an example."""

import re

import pytest

from deploy.cli import GROUPS, MOVED, build_parser, main

COMMANDS = build_parser().commands
PROMISED = ("train", "eval", "play", "export", "status", "explore", "report", "credit", "audit", "monitor", "serve-env",
            "serve-agent", "scale", "new-env", "doctor", "selftest")


def test_the_commands_are_those_that_were_promised():
    assert set(COMMANDS) == set(PROMISED)


def test_the_help_lists_each_command_once_in_its_group():
    assert sorted(name for commands in GROUPS.values() for name in commands) == sorted(PROMISED)
    text = build_parser().format_help()
    assert [name for name in PROMISED if len(re.findall(rf"^  {name} {{2,}}", text, re.MULTILINE)) != 1] == []


@pytest.mark.parametrize("name", MOVED)
def test_a_former_command_says_in_one_line_where_it_went(name: str, capsys: pytest.CaptureFixture[str]):
    assert main([name, "x"]) == 2
    assert capsys.readouterr().err == f"error: `gagpo {name}` has moved; use {MOVED[name]}\n"


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
    set(COMMANDS) - {"play", "new-env", "serve-env", "serve-agent", "train", "export", "explore", "monitor"}))
def test_every_command_that_prints_results_prints_json_too(name: str):
    assert "--json" in COMMANDS[name].format_help()
