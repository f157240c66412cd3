"""The command line. Light: no command's heavy imports happen before its arguments are parsed.

A command is a module: its docstring is the description and the examples of its help, `add_arguments(parser)` adds its
arguments, and `run(args)` returns the exit status (None: 0).

    0 success    1 a fault or a failed check    2 a mistake of the user    130 Ctrl-C    143 SIGTERM

Ctrl-C is how a server or a view is ended, so there it is a success.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import NoReturn, TextIO

from deploy.commands import (
    audit,
    credit,
    doctor,
    eval,
    explore,
    export,
    monitor,
    new_env,
    play,
    report,
    scale,
    selftest,
    serve_agent,
    serve_env,
    status,
    train,
)
from deploy.console.plain import printable
from services.config.keys import config_keys
from services.errors import Fault, UserError
from services.files import FULL
from services.process.env_variables import limit_openmp_spin
from services.process.own_code import OWN_CODE, Judge, allow, announcing, judging_imports, refuse
from services.process.packages import check_one_installation, naming_extras
from services.process.signals import signals_unwind
from services.telemetry.logs import get_logger, log_fails, log_path, say

COMMANDS = (train, eval, play, export, status, explore, report, credit, audit, monitor, serve_env, serve_agent, scale,
            new_env, doctor, selftest)

GROUPS = {
    "train and evaluate": {
        "train": "train an agent, or make its cold start alone",
        "eval": "measure a model on a fixed set of tasks",
        "play": "play one game, watch an agent play it, show its prompts, or list the tasks",
        "export": "write a run's policy as a Hugging Face folder",
    },
    "look": {
        "status": "show the state of a run",
        "explore": "look into a run in a browser",
        "report": "figures and tables of one run or of several",
        "credit": "step-level credit of your own episodes, from JSON",
        "audit": "prove that no ticket of a run was lost or counted twice",
        "monitor": "watch runs in Prometheus and Grafana",
    },
    "serve": {
        "serve-env": "serve the environment over HTTP",
        "serve-agent": "serve a policy to agents, by OpenAI's protocol",
        "scale": "change the number of workers and servers of a run",
    },
    "set up": {
        "new-env": "start an environment of your own",
        "doctor": "check this machine",
        "selftest": "show that a GPU machine works",
    },
}
"""Group of `gagpo --help` -> its commands, each in one line."""

MOVED = {
    "bench": "`python -m lab.bench` in a clone of the repository",
    "experiment": "`python -m lab.experiments` in a clone of the repository",
    "prompt": "`gagpo play TASK --prompts N`",
    "sft": "`gagpo train --config FILE --cold-start DIR`",
    "simulate": "`python -m lab.simulation` in a clone of the repository",
    "tasks": "`gagpo play --tasks SPLIT`",
}
"""Former command -> what to use instead."""

RUNS_OWN_CODE = frozenset({"train", "eval", "play", "serve-env", "serve-agent", "credit", "doctor", "selftest"})
"""Commands that import the user's own code that a config names: environments, agents, estimators, state keys. The other
commands may look at somebody else's run: explore, report and export import it only with --own-code, the rest never."""
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""errno values of a file that this user, or everybody on this mount, may not read or write."""


class Parser(argparse.ArgumentParser):
    """argparse with our one-line errors, and without abbreviations of options. `commands`: their parsers by name."""

    commands: Mapping[str, argparse.ArgumentParser] = {}

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType]  # passed on as they came

    def error(self, message: str) -> NoReturn:
        """Raises UserError instead of printing the usage."""
        raise UserError(" ".join(message.split()), f"see `{self.prog} --help`")


def build_parser() -> Parser:
    """Returns the parser of the entire command line."""
    parser = Parser(
        prog="gagpo",
        usage="gagpo [-h] [--version] COMMAND ...",
        description="Trains LLM agents by reinforcement learning with step-level credit.\n\n" + "\n\n".join(
            "\n".join([f"{group}:", *(f"  {name:<13}{line}" for name, line in commands.items())])
            for group, commands in GROUPS.items()),
        epilog="example:\n  gagpo train --config alfworld-tiny --dry-run",
    )
    parser.add_argument("--version", action="version", version=f"gagpo {version('gagpo')}")
    subparsers = parser.add_subparsers(prog="gagpo", help=argparse.SUPPRESS, metavar="COMMAND", dest="command")
    for command in COMMANDS:
        description, _, examples = (command.__doc__ or "").partition("\n\n")
        name = command.__name__.rpartition(".")[2].replace("_", "-")
        command_parser = subparsers.add_parser(name, description=description, epilog=examples)
        command.add_arguments(command_parser)
        command_parser.set_defaults(run=command.run)
    parser.commands = subparsers.choices
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses arguments. Raises UserError. Overrides may be between options, which argparse alone would refuse."""
    parser = build_parser()
    names = parser.commands
    if argv and argv[0] in MOVED:
        raise UserError(f"`gagpo {argv[0]}` has moved", f"use {MOVED[argv[0]]}")
    if argv and not argv[0].startswith("-") and argv[0] not in names:
        near = difflib.get_close_matches(argv[0], names, n=1)
        raise UserError(f"there is no command {argv[0]!r}",
                        f"did you mean `gagpo {near[0]}`?" if near else "see `gagpo --help`")
    if argv and argv[0] in names and (complete := names[argv[0]].get_default("complete")):
        complete(names[argv[0]], argv[1:])
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        raise UserError("no command is given", "see `gagpo --help`")
    stray = [word for word in rest if word.startswith("-") or not hasattr(args, "overrides")]
    if stray:
        option = stray[0].partition("=")[0]
        near = _settings_named(option) if hasattr(args, "overrides") else []
        if option.startswith("-"):
            options = re.findall(r"(?<!\w)--?[a-z][\w-]*", names[args.command].format_help())
            near = near or difflib.get_close_matches(option, options, n=1)
        raise UserError(f"unrecognised argument {stray[0]}", f"did you mean {near[0]}?" if near else
                        f"see `gagpo {args.command} --help`")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _settings_named(option: str) -> list[str]:
    """Returns what to write instead of `--steps`, `--learner.lr` or `--group-size`; empty if no key has this name."""
    name = option.lstrip("-").replace("-", "_")
    keys = [key for key in config_keys() if name == key] or [key for key in config_keys() if key.endswith(f".{name}")]
    return [f"{' or '.join(f'{key}=VALUE' for key in keys)}, without dashes"] if keys else []


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command of `gagpo` and returns its exit status."""
    words = sys.argv[1:] if argv is None else argv

    def command() -> int | None:
        with naming_extras(), judging_imports(_judge_of(words)):
            args = parse(words)  # `credit` imports an estimator of the user's own to learn its options
            check_one_installation()
            return args.run(args)

    return run_guarded(command)


def run_guarded(command: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit status; every failure ends in one line on stderr."""
    with signals_unwind():
        status = _run(command)
        _flush_or_drop(sys.stderr)
        return status


def _run(command: Callable[[], int | None]) -> int:
    limit_openmp_spin()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 has no characters for some of our text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command() or 0
        sys.stdout.flush()
    except UserError as error:
        return max(_say(f"{each.what}; {each.fix}", 2) for each in (error, *error.others))
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        _flush_or_drop(sys.stdout)
        return 128 + signal.SIGPIPE
    except Exception as error:
        _flush_or_drop(sys.stdout)
        return _report(error)
    return status


def _judge_of(argv: Sequence[str]) -> Judge:
    """Returns the judge of whether a command may import the user's own code."""
    command, options = next(iter(argv), ""), {word.partition("=")[0] for word in argv}  # of --resume=DIR too
    if command == "eval" or options & {OWN_CODE, "--resume", "--agent"}:  # a run's config
        return announcing(lambda text: say(printable(text)))
    return allow if command in RUNS_OWN_CODE else refuse


def _flush_or_drop(stream: TextIO) -> None:
    """Writes what is left of stdout or stderr. If its reader has gone or its disk is full, redirects it: the
    interpreter's last flush would raise the error again, and change the exit status."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report(error: Exception) -> int:
    """Writes the traceback to the run's log, or to stderr if there is no log or it fails, and prints one line.

    Before there is a log, a file that cannot be used gets its line alone.
    """
    cause = getattr(error, "cause", error)  # Ray wraps an actor's exception in one whose text is a complete traceback
    name = f"{cause.boundary} fault" if isinstance(cause, Fault) else f"unexpected {type(cause).__name__}"
    log = log_path()
    if log is None and isinstance(cause, OSError) and (
            cause.filename is not None or cause.errno in (*FULL, errno.EFBIG)):
        return _say(*_about_file(cause))
    if log is None and isinstance(cause, UnicodeEncodeError) and cause.encoding == sys.getfilesystemencoding() \
            and "\n" not in cause.object:
        return _say(f"{cause.object!r} cannot name a file where names are {cause.encoding}; set PYTHONUTF8=1", 2)
    if log is not None:
        get_logger("cli").error("the command failed", exc_info=error)
        if not log_fails():
            return _say(f"{name}: {cause}; the traceback is in {log}", 1)
    say("".join(traceback.format_exception(error)).rstrip())
    return _say(f"{name}: {cause}; the traceback is above", 1)


def _about_file(error: OSError) -> tuple[str, int]:
    """Returns what to print about a file that cannot be used, and the exit status. A supervisor restarts a run
    only after status 1: that helps once the disk has room, and never against a refusal."""
    if error.errno == errno.EFBIG:
        name = "" if error.filename is None else f"{error.filename}: "
        return f"{name}{error.strerror}; raise the limit of a file's size (`ulimit -f`)", 2
    if error.filename is None:
        return f"{error.strerror}; make room on the disk that the command writes to", 1
    if error.errno in REFUSED:
        return f"{error.filename}: {error.strerror}; give another path, or make this one accessible to this user", 2
    return f"{error.filename}: {error.strerror}; give another path, or make room for this one", 1


def _say(text: str, status: int) -> int:
    say(f"error: {printable(' '.join(text.split()))}")
    return status


if __name__ == "__main__":
    sys.exit(main())
