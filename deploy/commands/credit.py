"""`gagpo credit`: what an estimator makes of one group, from a file or a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.config.tree import CreditSection
from services.errors import UserError
from services.files import JSON_BYTES, read_bounded

if TYPE_CHECKING:
    from learner.credit.types import Credit, CreditStep, Estimator

EXAMPLE = """An episode that its budget cut off may say what it saw last: {"steps": [...], "final_state": "S"}.
Options are the config's keys under learner.credit: docs/reference/configuration.md.

example:
  echo '{"episodes": [{"steps": [{"state": "S", "reward": 10, "invalid": false}]},
                      {"steps": [{"state": "S", "reward": 0, "invalid": true}]}]}' | gagpo credit --table
"""


REFUSED = {
    ("normalize", "batch"): "the input is one group, and `batch` is over all groups of a learner step",
    ("state_key", "prompt"): "the input has texts, and `prompt` compares the tokens of whole prompts",
}
"""(option, value) -> why it means nothing here."""


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Step(_Input):
    state: str
    reward: float
    invalid: bool = False


class _Episode(_Input):
    steps: list[_Step] = Field(min_length=1)
    final_state: str | None = None


class _Group(_Input):
    episodes: list[_Episode] = Field(min_length=1)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Looks the estimators up when help is shown, for only then may it cost their imports."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.dest != "estimator":
            return super()._get_help_string(action)
        from learner.credit.registry import ESTIMATORS

        return f"one of {', '.join(ESTIMATORS)}; default %(default)s"


def add_parser(subparsers: Any) -> None:
    """Adds `credit`; the command is in `args.run`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "credit", help="step-level credit of one group, from JSON", epilog=EXAMPLE, formatter_class=_Help,
        description="Reads the episodes of one group as JSON, prints returns, values, deltas and advantages.")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="JSON file; - or nothing: standard input")
    for name, field in CreditSection.model_fields.items():
        _add_option(parser, name, field.default, get_args(field.annotation))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON (the default)")
    form.add_argument("--table", action="store_true", help="print a table for people")
    parser.set_defaults(run=run)


def _add_option(parser: argparse.ArgumentParser, name: str, default: Any, values: tuple[Any, ...]) -> None:
    """A key of the config as an option; `values`: those of a Literal."""
    option = f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        return
    parser.add_argument(option, type=type(default), default=default, choices=values or None,
                        metavar="NUMBER" if isinstance(default, float) else None, help="default %(default)s")


def run(args: argparse.Namespace) -> int:
    """Prints the credit; 0. Raises UserError for bad input, an option that means nothing here or is out of range."""
    from learner.credit.registry import estimator

    options = _options(args)
    chosen = estimator(options.estimator)
    _needs_only_the_input(options.estimator, chosen)
    steps = _steps(_parse(_read(args.file)), options)
    credit, = chosen.batch([chosen.group(steps, options)], options)
    print(_table(credit) if args.table else _json(credit))
    return 0


def _options(args: argparse.Namespace) -> CreditSection:
    given = {name: getattr(args, name) for name in CreditSection.model_fields}
    for (name, value), reason in REFUSED.items():
        if given[name] == value:
            raise UserError(f"option --{name.replace('_', '-')} {value}: {reason}", "choose another value")
    try:
        return CreditSection(**given)
    except ValidationError as error:
        raise _one_line("option --", error) from None


def _needs_only_the_input(name: str, chosen: Estimator) -> None:
    lacking = {"a critic": chosen.needs_critic, "response tokens": chosen.needs_tokens}
    if any(lacking.values()):
        what = " and ".join(thing for thing, needed in lacking.items() if needed)
        raise UserError(f"option --estimator {name}: it needs {what}, which the input does not have",
                        "see the episodes/ of a run, or choose another")


def _steps(group: _Group, options: CreditSection) -> list[list[CreditStep]]:
    """Steps as the estimators see them; a pooled state goes by the text that stands for it."""
    from learner.credit.state_keys import TEXT_KEYS, pooled
    from learner.credit.types import CreditStep

    rows = [[step.state for step in episode.steps] for episode in group.episodes]
    finals = [episode.final_state for episode in group.episodes]
    state = pooled(rows, (text for text in finals if text is not None), TEXT_KEYS[options.state_key],
                   options.similarity)
    return [[CreditStep(state=state[step.state], reward=step.reward, invalid=step.invalid,
                        cut_in=state[final] if final is not None and step is episode.steps[-1] else None)
             for step in episode.steps] for episode, final in zip(group.episodes, finals, strict=True)]


def _read(name: str) -> str | bytes:
    if name == "-":
        text = sys.stdin.read(JSON_BYTES + 1)
        if len(text) > JSON_BYTES:
            raise UserError(f"standard input has more than {JSON_BYTES >> 20} MiB", "give one group at a time")
        return text
    try:
        return read_bounded(Path(name))
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}", "give a JSON file, or - for standard input") from None


def _parse(text: str | bytes) -> _Group:
    try:
        return _Group.model_validate_json(text)
    except ValidationError as error:
        raise _one_line("", error) from None


def _one_line(prefix: str, error: ValidationError) -> UserError:
    first = error.errors()[0]
    where = prefix + (".".join(str(part) for part in first["loc"]) or "input")
    return UserError(f"{where}: {first['msg']}", "see gagpo credit --help for the form")


def _json(credit: Credit) -> str:
    return json.dumps({name: getattr(credit, name)
                       for name in ("returns", "values", "deltas", "raw_advantages", "advantages")}, allow_nan=False)


def _table(credit: Credit) -> str:
    """One line per step, without the columns that the estimator does not have; then how far states are shared."""
    values = credit.values
    columns: dict[str, list[list[Any]] | None] = {
        "state": credit.states,  # type: ignore[dict-item]  # the one column of text
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


def _sharing(credit: Credit) -> str:
    """The paper's table 5 for this group."""
    from learner.credit.types import statistics

    found = statistics([credit])
    shares = {"1": "singleton_share", "2-4": "share_2_4", "5-8": "share_5_8", ">8": "share_above_8"}
    return (f"steps per state: {found['group_size_mean']:.2f}; share of steps whose state has "
            + ", ".join(f"{size}: {found[name]:.1%}" for size, name in shares.items()))


def _cell(value: Any) -> str:
    """Four digits; a text on one line of at most 60 characters."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
