"""Findings of pydantic in the values of a config, each told to the user in one line. Light."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from services.config.keys import nearest, takes_pair
from services.config.secrets import masked
from services.errors import UserError

COMMAND_LINE = "the command line"
SCALARS = (bool, int, float, date)
"""The types that YAML makes of words such as `2026`, `no` and `2026-11-24`, which may be names."""

FIXES = {"path_type": "give a path",
         "string_pattern_mismatch": "use letters, digits, `.`, `_` and `-`, and begin with a letter or a digit"}
"""Advice for errors whose own words do not help."""


def one_line(error: ValidationError, where: Path | str, prefix: str = "") -> UserError:
    """Returns the first finding of pydantic as a UserError. `where` is what to change, `prefix` goes before the key.

    A prefix is a section with its dot, or a word with its space, such as `option `: then nobody can type `key=VALUE`.
    """
    typed = not prefix.endswith(" ")
    first, *others = error.errors(include_url=False)
    more = f" (and {len(others)} more)" if others else ""
    key = prefix + ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    pair = prefix + ".".join(part for part in first["loc"] if isinstance(part, str))
    if first["type"] in ("missing", "too_long", "tuple_type") and takes_pair(pair):
        return UserError(f"{pair} takes two values and {wrong(first['input'])}{more}", "write [VALUE, VALUE]")
    if first["type"] == "missing":
        return UserError(f"{key} is not set{more}",
                         f"set it in {where} or give {key}=VALUE" if typed else "give it a value")
    if first["type"] == "value_error":
        fix = "give another value" if where == COMMAND_LINE else \
            f"change it in {where} or override it on the command line"
        return UserError(f"{key}: {message}{more}", fix)
    if first["type"] == "extra_forbidden":
        return UserError(f"unknown key {key}{more} in {where}", nearest(key))
    if first["type"] == "model_type":
        return UserError(f"{key} is a section and {wrong(first['input'])}{more}",
                         f"set its keys: {key}.KEY=VALUE" if typed else "give it as {KEY: VALUE}")
    if first["type"] == "tuple_type":
        fix = "write [] or [VALUE, VALUE]" if first["input"] is None else f"write [{first['input']}]"
        return UserError(f"{key} is a list and {wrong(first['input'])}{more}", fix)
    if first["type"] == "string_type" and isinstance(first["input"], SCALARS):
        return UserError(f"{key} is a text and cannot be {first['input']!s}{more}", f"write it in quotes in {where}")
    fix = FIXES.get(first["type"]) or re.sub(r"^(Input|String) should", "it should", message)
    given = masked(first["input"]) if isinstance(first["input"], str) else first["input"]
    return UserError(f"{key} {wrong(given)}{more}", fix)


def wrong(value: object) -> str:
    """Returns what is wrong with a value, as the end of a sentence that begins with its key."""
    return "has no value" if value is None else f"cannot be {value!r}"
