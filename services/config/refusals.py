"""Turns pydantic's errors about a config into UserErrors, one line for each. Light."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from services.config.keys import config_keys, nearest, takes_pair
from services.config.secrets import masked
from services.errors import UserError

COMMAND_LINE = "the command line"
LONGEST = 500
"""Characters of a value in a refusal."""
SCALARS = (bool, int, float, date)
"""The types that YAML makes of words such as `2026`, `no` and `2026-11-24`, which may be names."""

FIXES = {"path_type": "give a path",
         "string_pattern_mismatch": "use letters, digits, `.`, `_` and `-`, and begin with a letter or a digit"}
"""Fixes for errors whose own message does not help, by pydantic's type of the error."""


def refusal(error: ValidationError, where: Path | str | Callable[[str], Path | str], prefix: str = "") -> UserError:
    """Returns pydantic's errors as a UserError with `others`. `where`: the file or command line to change, or a
    function of the key that returns it. `prefix` goes before each key: a section with its dot, or a word with its
    space, such as `option `. With a word, the fix does not propose `key=VALUE`, which could not be typed.
    """
    keys = set(config_keys())
    findings: dict[str, ErrorDetails] = {}
    for finding in error.errors(include_url=False):  # a union gives one for each of its types
        parts = [prefix + _key_of(finding["loc"][:end]) for end in range(1, len(finding["loc"]) + 1)] or [prefix]
        findings.setdefault(next((key for key in parts if key in keys), parts[-1]), finding)
    first, *others = (_one_line(finding, where(_key_of(finding["loc"])) if callable(where) else where, prefix)
                      for finding in findings.values())
    first.others = tuple(others)
    return first


def _key_of(parts: tuple[int | str, ...]) -> str:
    match parts:
        case ("env", "more", int(index), *rest):
            return ".".join((f"env[{index + 1}]", *map(str, rest)))
        case _:
            return ".".join(map(str, parts))


def _one_line(finding: ErrorDetails, where: Path | str, prefix: str) -> UserError:
    typed = not prefix.endswith(" ")
    key = prefix + _key_of(finding["loc"])
    message = finding["msg"].removeprefix("Value error, ")
    given = masked(finding["input"])[:LONGEST] if isinstance(finding["input"], str) else finding["input"]
    pair = prefix + ".".join(part for part in finding["loc"] if isinstance(part, str))
    if finding["type"] in ("missing", "too_long", "tuple_type") and takes_pair(pair):
        return UserError(f"{pair} takes two values and {describe_invalid_value(given)}", "write [VALUE, VALUE]")
    if finding["type"] == "missing":
        return UserError(f"{key} is not set",
                         f"set it in {where} or give {key}=VALUE" if typed else "give it a value")
    if finding["type"] == "value_error":
        what, _, own_fix = message.rpartition("; ")
        fix = own_fix if what else "give another value" if where == COMMAND_LINE else \
            f"change it in {where} or override it on the command line"
        return UserError(": ".join(filter(None, (key, what or message))), fix)
    if finding["type"] == "extra_forbidden":
        return UserError(f"unknown key {key} in {where}", nearest(key))
    if finding["type"] == "model_type":
        return UserError(f"{key} is a section and {describe_invalid_value(given)}",
                         f"set its keys: {key}.KEY=VALUE" if typed else "give it as {KEY: VALUE}")
    if finding["type"] == "tuple_type":
        fix = "write [] or [VALUE, VALUE]" if given is None else f"write [{given}]"
        return UserError(f"{key} is a list and {describe_invalid_value(given)}", fix)
    if finding["type"] == "string_type" and isinstance(finding["input"], SCALARS):
        return UserError(f"{key} is a text and cannot be {finding['input']!s}", f"write it in quotes in {where}")
    fix = FIXES.get(finding["type"]) or re.sub(r"^(Input|String) should", "it should", message)
    return UserError(f"{key} {describe_invalid_value(given)}", fix)


def describe_invalid_value(value: object) -> str:
    """Returns the end of a sentence that begins with a key: `has no value`, `cannot be 'x'`."""
    return "has no value" if value is None else f"cannot be {value!r:.{LONGEST}}"
