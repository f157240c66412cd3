"""Reads groups of episodes as JSON, prints returns, values, deltas and advantages of their steps.

JSON lines have one group in each line; the groups of a file count as those of one learner step.
A step may have its action, a group its id: {"id": "task 7", "episodes": [{"steps": [{"state": "S", "action": "go",
"reward": 0}]}]}. An episode that its budget cut off may say what it saw last: {"steps": [...], "final_state": "S"}.
Options are the config's keys under learner.credit: docs/reference/configuration.md.

examples:
  echo '{"episodes": [{"steps": [{"state": "S", "reward": 10, "invalid": false}]},
                      {"steps": [{"state": "S", "reward": 0, "invalid": true}]}]}' | gagpo credit --table
  gagpo credit rollouts/40.jsonl --from verl --table
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from pydantic import TypeAdapter

from deploy.console.plain import printable
from services.config.file import as_yaml, from_yaml
from services.config.keys import kinds_of, of_text
from services.config.sections import CreditSection
from services.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from learner.credit.types import Credit
    from learner.logged_groups.form import LoggedGroup


_COMMANDS_OWN = ("file", "source", "json", "table", "run", "complete", "command")
"""Parsed names that are not options of an estimator or a state key."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("file", nargs="?", default="-", metavar="FILE",
                        help="JSON, or JSON lines; - or nothing: standard input")
    parser.add_argument("--from", dest="source", choices=("gagpo", "verl", "agents", "chat"), default="gagpo",
                        help="whose form the file has; verl: a rollout dump of verl, or of verl-agent with two "
                        "statements added to its trainer (docs/tasks/logged-episodes.md); agents: episodes of "
                        "serve-agent --out; chat: messages with a reward, as of verifiers; default %(default)s")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one line of JSON for each group (the default)")
    form.add_argument("--table", action="store_true", help="print a table for people")
    parser.set_defaults(complete=add_options)


def add_options(parser: argparse.ArgumentParser, arguments: Sequence[str] = ()) -> None:
    """Adds the options of all estimators and state keys, also of the user's own one that `arguments` name.

    Other commands do not import estimators, so the options come only when this command is asked for. Raises UserError
    for an option of the user's that has the name of one of the command's.
    """
    from learner.credit.registry import ESTIMATORS, models, option_tables
    from learner.credit.state_keys import KEYS
    from learner.logged_groups.form import OF_RUNS

    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in (("estimator", "gagpo"), ("state-key", "observation")):
        named.add_argument(f"--{name}", nargs="?", const=default, default=argparse.SUPPRESS)
    own = models(CreditSection.model_validate(vars(named.parse_known_args(arguments)[0])))
    shipped, titles = {title: model for title, _, model in option_tables()}, ("your own estimator", "your own key")
    tables = {**shipped, **{title: model for title, model in zip(titles, own, strict=True)
                            if model not in shipped.values()}}
    refused = [name for name, each in ESTIMATORS.items() if each.needs_critic or each.needs_tokens]
    able = [name for name in ESTIMATORS if name not in refused]
    read = {title: model for title, model in tables.items() if title.removeprefix("estimator ") not in refused}
    parser.add_argument("--estimator", default="gagpo", help=(
        f"one of {', '.join(able)}, or module:Name of your own; default %(default)s"))
    default = own[0].model_fields["state_key"].default
    parser.add_argument("--state-key", default=argparse.SUPPRESS, help=(  # an estimator may have a default of its own
        f"one of {', '.join(key for key in KEYS if key not in OF_RUNS)}; default {default}"))
    fields = {name: field for model in tables.values() for name, field in model.model_fields.items()}
    if taken := sorted(fields.keys() & {"help", *_COMMANDS_OWN}):
        raise UserError(f"{taken[0]} is an option of your own estimator or state key, and means something else to "
                        "`gagpo credit`", "rename it in its Options")
    for name, field in fields.items():
        if name not in ("estimator", "state_key"):
            _add_option(parser, name, field, _meaning(name, read))


def _meaning(name: str, tables: Mapping[str, type[BaseModel]]) -> str:
    """Returns the help of a key: its meaning and default, with the titles of the models that have them unless most do.

    A key that only refused estimators have is hidden. It is parsed, so that its estimator is refused with the reason.
    """
    readers: dict[tuple[str, str], list[str]] = {}
    for title, model in tables.items():
        if field := model.model_fields.get(name):
            readers.setdefault((" ".join((field.description or "").split()), _default(field)), []).append(
                title.removeprefix("estimator "))
    parts, before = list[str](), ""
    for (meaning, default), titles in readers.items():
        owners = "" if len(titles) > len(tables) // 2 else f"; for {', '.join(titles)}"
        parts.append(f"{meaning if meaning != before else ''} ({default}{owners})".strip())
        before = meaning
    return " ".join(parts) or argparse.SUPPRESS


def _default(field: FieldInfo) -> str:
    """Returns the default as a user would write it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    default = TypeAdapter(Any).dump_python(default, mode="json", fallback=str)
    return f"default {as_yaml(default) if isinstance(default, list | dict) else default}"


def _add_option(parser: argparse.ArgumentParser, name: str, field: FieldInfo, meaning: str) -> None:
    """Adds a key of the config as an option without a default value."""
    option, text = f"--{name.replace('_', '-')}", meaning.replace("%", "%%")
    if isinstance(field.default, bool):
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        return
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    number = field.annotation in (int, float)
    texts = of_text(kinds_of(field.annotation))
    kind = (cast(type, field.annotation) if number else type(choices[0]) if choices else
            str if texts else partial(from_yaml, named=option))
    parser.add_argument(option, type=kind, default=argparse.SUPPRESS, help=text,
                        choices=choices or None, metavar="NUMBER" if number else None)


def run(args: argparse.Namespace) -> int:
    """Prints the credit, and warns of options that have no effect. Returns 0.

    Raises UserError for bad input, for an option that is out of range, and for an estimator or state key that needs
    more than the input has.
    """
    from learner.credit.registry import unread
    from learner.logged_groups.chat import read_chat
    from learner.logged_groups.files import read_agents, read_groups
    from learner.logged_groups.form import credit_of, credit_options, idle_options, quality_warnings
    from learner.logged_groups.verl import read_verl

    given = {name: value for name, value in vars(args).items() if name not in _COMMANDS_OWN}
    options = credit_options(given)
    if args.source == "verl":
        _check_verl_options(options)
    groups = {"gagpo": read_groups, "verl": read_verl, "agents": read_agents, "chat": read_chat}[args.source](args.file)
    warnings = [f"--{name.replace('_', '-')} does nothing {why}"
                for name, why in {**idle_options(groups, options), **unread(options, given)}.items()]
    credits = credit_of(groups, options)
    warnings += quality_warnings(groups, credits, options, agents=args.source == "agents")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for number, (group, credit) in enumerate(zip(groups, credits, strict=True), start=1):
        if args.table and len(groups) > 1:
            print(f"{'' if number == 1 else chr(10)}group {number}{f': {_cell(group.id)}' if group.id else ''}")
        print(_table(group, credit) if args.table else _json(group, credit, warnings))
    return 0


def _check_verl_options(options: CreditSection) -> None:
    """Raises UserError for an option that has no effect, because verl's logs lack the field that it reads."""
    for name, lacks in (("stay", "which actions changed nothing"), ("bootstrap", "in which state an episode was cut")):
        if getattr(options, name, False):
            raise UserError(f"--{name}: logs of verl do not say {lacks}", f"leave --{name} out")


def _json(group: LoggedGroup, credit: Credit, warnings: Sequence[str]) -> str:
    """Returns the line of a group. `warnings`: those about all groups, which each line has."""
    given = {"id": group.id, "actions": group.actions, "baselines": credit.baselines}
    return json.dumps({**{name: value for name, value in given.items() if value is not None},
                       **{name: getattr(credit, name)
                          for name in ("returns", "values", "deltas", "raw_advantages", "advantages")},
                       "warnings": list(warnings)},
                      allow_nan=False)


def _table(group: LoggedGroup, credit: Credit) -> str:
    """Returns one line per step, without columns that the estimator or the input lacks, then a line on how many steps
    share their state."""
    values = credit.values
    columns: dict[str, list[list[Any]] | None] = {
        "state": credit.states,  # type: ignore[dict-item]  # these two are columns of text
        "action": group.actions,  # type: ignore[dict-item]
        "invalid": _reasons(group),  # type: ignore[dict-item]
        "return": credit.returns,
        "value": credit.baselines or ([[values[s][0] for s in row] for row in credit.states] if values else None),
        "count": [[values[s][1] for s in row] for row in credit.states] if values else None,
        "delta": credit.deltas,
        "raw": credit.raw_advantages,
        "advantage": credit.advantages,
    }
    shown = {name: column for name, column in columns.items() if column is not None}
    lines = [["episode", "step", *shown]]
    for i, row in enumerate(credit.states):
        lines += [[str(i), str(t), *(_cell(column[i][t]) for column in shown.values())] for t in range(len(row))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*cells, _sharing(credit)])


def _reasons(group: LoggedGroup) -> list[list[str]] | None:
    """Returns why each output is invalid, or None if all are valid."""
    rows = [[(step.reason or "yes") if step.invalid else "" for step in episode.steps] for episode in group.episodes]
    return rows if any(map(any, rows)) else None


def _sharing(credit: Credit) -> str:
    """Returns the paper's table 5 for this group, in one line."""
    from learner.credit.types import statistics

    row = statistics([credit])
    shares = {"1": "singleton_share", "2-4": "share_2_4", "5-8": "share_5_8", ">8": "share_above_8"}
    return (f"steps per state: {row['group_size_mean']:.2f}; share of steps whose state has "
            + ", ".join(f"{size}: {row[name]:.1%}" for size, name in shares.items()))


def _cell(value: Any) -> str:
    """Returns a number with four decimals, "" for None, and a text on one line of at most 60 characters: its beginning
    and its end, which often is what differs."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = "" if value is None else printable(" ".join(str(value).split()))
    return text if len(text) <= 60 else f"{text[:29]}…{text[-30:]}"
