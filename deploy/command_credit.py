"""`gagpo credit`: what an estimator makes of one group, from a file or a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from services.config import CreditSection
from services.errors import UserError

if TYPE_CHECKING:
    from learner.credit.types import Credit

EXAMPLE = """example:
  echo '{"episodes": [{"steps": [{"state": "S", "reward": 10, "invalid": false}]},
                      {"steps": [{"state": "S", "reward": 0, "invalid": true}]}]}' | gagpo credit --table
"""


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Step(_Input):
    state: str
    reward: float
    invalid: bool = False


class _Episode(_Input):
    steps: list[_Step] = Field(min_length=1)


class _Group(_Input):
    episodes: list[_Episode] = Field(min_length=1)


def add_parser(subparsers: Any) -> None:
    """Adds `credit`; the command is in `args.run`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "credit", help="step-level credit of one group, from JSON", epilog=EXAMPLE,
        description="Reads the episodes of one group as JSON, prints returns, values, deltas and advantages.",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = CreditSection()
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="JSON file; - or nothing: standard input")
    parser.add_argument("--estimator", default=defaults.estimator)
    for name in ("gamma", "lam", "penalty"):
        parser.add_argument(f"--{name}", type=float, default=getattr(defaults, name), help="default %(default)s")
    for name in ("penalty_mode", "normalize", "ddof"):
        adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", CreditSection.model_fields[name].annotation))
        choices = adapter.json_schema()["enum"]
        parser.add_argument(f"--{name.replace('_', '-')}", choices=choices, type=type(choices[0]),
                            default=getattr(defaults, name), help="default %(default)s")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON (the default)")
    form.add_argument("--table", action="store_true", help="print a table for people")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the credit; 0. Raises UserError for bad input, an unknown estimator or an option out of range."""
    from learner.credit.registry import estimator
    from learner.credit.types import CreditStep

    chosen = estimator(args.estimator)
    try:
        options = CreditSection(**{name: getattr(args, name) for name in CreditSection.model_fields if name in vars(args)})
    except ValidationError as error:
        raise _one_line("option --", error) from None
    group = _parse(_read(args.file))
    episodes = [[CreditStep(state=s.state, reward=s.reward, invalid=s.invalid) for s in e.steps]
                for e in group.episodes]
    credit = chosen.group(episodes, options)
    print(_table(credit) if args.table else _json(credit))
    return 0


def _read(name: str) -> str | bytes:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_bytes()
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
    """One line per step; columns that the estimator does not have are left out."""
    values = credit.values
    columns: dict[str, list[list[Any]] | None] = {
        "state": credit.states,  # type: ignore[dict-item]  # the one column of text
        "return": credit.returns,
        "value": [[values[s][0] for s in row] for row in credit.states] if values else None,
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
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
