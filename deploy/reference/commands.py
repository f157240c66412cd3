"""The page of commands, from the parsers of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from deploy.cli import build_parser
from deploy.reference.markdown import code, document, table

INTRODUCTION = """Every command of `gagpo`, as `gagpo COMMAND --help` shows it.

All commands end with the same exit codes: 0 success, 1 a fault or a failed check, 2 a mistake of the user, \
130 Ctrl-C (0 for a server or a view, which goes on until then), 143 SIGTERM. \
An error is one line on stderr: what is wrong, and how to fix it."""


def page() -> str:
    """Returns the page."""
    parser = build_parser()
    return document("Commands", INTRODUCTION, *(
        block for name, command in subcommands(parser).items() for block in _command(f"gagpo {name}", command)))


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of a parser's commands, by name."""
    for action in parser._actions:  # argparse has no public access to its commands
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for command in action.choices.values():
                if complete := command.get_default("complete"):
                    complete(command)
            return dict(action.choices)
    return {}


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {name}"
    yield " ".join((parser.description or "").split())
    rows = [[_flags(action), _meaning(action)] for action in parser._actions if _documented(action)]
    if rows:
        yield table(["argument", "meaning"], rows)
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```"
    for inner, command in subcommands(parser).items():
        yield from _command(f"{name} {inner}", command)


def _documented(action: argparse.Action) -> bool:
    hidden = isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))  # pyright: ignore[reportPrivateUsage]
    return not hidden and action.help is not argparse.SUPPRESS


def _flags(action: argparse.Action) -> str:
    if not action.option_strings:
        return code(_placeholder(action))
    takes_value = action.nargs != 0
    return ", ".join(code(f"{flag} {_placeholder(action)}" if takes_value else flag)
                     for flag in action.option_strings)


def _placeholder(action: argparse.Action) -> str:
    shown = action.metavar
    if isinstance(shown, tuple):
        return " ".join(shown)
    if shown is not None:
        return shown
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _meaning(action: argparse.Action) -> str:
    """Returns argparse's help with `%(default)s` and similar filled in."""
    return (action.help or "") % {**vars(action), "prog": "gagpo"}
