"""The keys of the config by their dotted names, and the advice about a name that is none of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from services.config.tree import Config
from services.errors import UserError

OPEN_SECTION = "learner.credit."
"""The section whose keys depend on the estimator."""
LIST = "env.more"
"""Key under which the tree holds all but the first environment of a list. A config file has `env: [...]` instead."""
FEW = 8
"""All names are listed if they are at most so many."""
NEAREST = 3
"""Number of names that are listed if there are more."""
LONGEST = 100
"""Characters of an unknown key that are printed, and compared with the names of keys."""
ALIKE = 0.6
"""Similarity (difflib's ratio) from which a key is taken for a misspelt one."""
ALIKE_ELSEWHERE = 0.8
"""The same for the last part of a key of another section: half of the words of the config resemble each other."""


@cache
def config_keys() -> tuple[str, ...]:
    """Returns the dotted name of each key, in the order of declaration."""
    return tuple(_keys_of(Config, ""))


def _keys_of(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys_of(field.annotation, f"{prefix}{name}.")
        elif prefix + name != LIST:
            yield prefix + name


def takes_text(key: str) -> bool:
    """Returns whether the values of a key are texts or paths, so that YAML's `2026` or `no` means a text."""
    return of_text(_kinds(key))


def takes_pair(key: str) -> bool:
    """Returns whether a value of a key is a list of exactly two."""
    return any(get_origin(kind) is tuple and len(get_args(kind)) == 2 and ... not in get_args(kind)
               for kind in _kinds(key))


def _kinds(key: str) -> set[Any]:
    """Returns the types of a key's values as `kinds_of` does; none if there is no such key."""
    section: type[BaseModel] = Config
    *above, leaf = key.split(".")
    for name in above:
        kind = section.model_fields[name].annotation if name in section.model_fields else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return set()
        section = kind
    return kinds_of(section.model_fields[leaf].annotation) if leaf in section.model_fields else set()


def of_text(kinds: set[Any]) -> bool:
    """Returns whether values of these types are texts or paths."""
    return bool(kinds) and kinds <= {str, Path}


def kinds_of(kind: Any) -> set[Any]:
    """Returns the types that an annotation allows, without None."""
    choices = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    return {each for each in choices if each is not None and each is not type(None)}


def is_section(key: str) -> bool:
    """Returns whether keys lie below this one."""
    return any(name.startswith(f"{key}.") for name in config_keys())


def check_key(key: str, where: Path | str) -> None:
    """Raises UserError for a key or section that the config does not have. `where`: its file, or the command line."""
    if key in config_keys() or is_section(key):
        return
    option = OPEN_SECTION + key.removeprefix(OPEN_SECTION).partition(".")[0]
    if key.startswith(OPEN_SECTION) and option not in config_keys():
        return  # learner/credit/registry.py checks it, by the estimator; keys may lie below an option
    key = key[:LONGEST]
    raise UserError(f"unknown key {key} in {where}", nearest(key))


def check_nested(name: str, prefix: str, where: Path | str) -> None:
    """Checks a name below `prefix` in a mapping, as `check_key`. A path with dots is a key of the command line only."""
    key = f"{prefix}{name}"
    before, colon, after = name.partition(":")
    if colon and (f"{prefix}{before}" in config_keys() or is_section(f"{prefix}{before}")):
        raise UserError(f"unknown key {key} in {where}", f"write a space after the colon: {before}: {after}")
    check_key(key, where)
    if "." in name:
        section, _, leaf = name.rpartition(".")
        raise UserError(f"the key {key} has a dot in {where}", f"write {section.replace('.', ': {')}: {{{leaf}: VALUE}}"
                        + "}" * section.count("."))


def nearest(key: str) -> str:
    """Returns advice: the keys that may be meant, or the keys of the section (else of the config) if there are none.

    These are the same name in other case or with other separators, else the keys with exactly this last part or its
    initials, else the most similar key or section. Keys of another section are listed next to those of the given one:
    they may have nothing to do with it. Of a section with many keys, the few that are most similar are listed.
    """
    keys = list(config_keys())
    section = key.rpartition(".")[0]
    siblings = [name.rpartition(".")[2] for name in keys if section and name.rpartition(".")[0] == section]
    all_of = _some_of(key, siblings, f"keys of {section}") if siblings else \
        _some_of(key, list(Config.model_fields), "keys and sections")
    meant = _meant(key, keys, known_section=bool(siblings))
    if not meant:
        return all_of
    near = not siblings or any("." not in name or name.startswith(f"{section}.") for name in meant)
    return f"did you mean {' or '.join(meant)}?" + ("" if near else f" If not: {all_of}")


def _some_of(key: str, names: list[str], what: str) -> str:
    """Returns all names if they are few, else those that share a word with the last part of `key` or resemble it."""
    if len(names) <= FEW:
        return f"the {what} are {', '.join(names)}"
    leaf = key.rpartition(".")[2]

    def likeness(name: str) -> float:
        return sum(word in name for word in leaf.split("_")) + difflib.SequenceMatcher(None, leaf, name).ratio()

    some = sorted(names, key=likeness, reverse=True)[:NEAREST]
    return f"the nearest of the {len(names)} {what} are {', '.join(some)}; all are in docs/reference/configuration.md"


def _meant(key: str, keys: list[str], *, known_section: bool) -> list[str]:
    """Returns the keys or sections that a wrong key may mean. `known_section`: whether its section has keys."""
    sections = {name[:place] for name in keys for place, letter in enumerate(name) if letter == "."}
    section, _, leaf = key.rpartition(".")
    same = [name for name in (*keys, *sections) if name.lower() == key.lower()]
    same = same or [name for name in keys if name.replace(".", "_") == key.replace(".", "_")]
    same = same or [name for name in keys if name.rpartition(".")[2] == leaf]
    initials = "".join(word[:1] for word in leaf.split("_")) if "_" in leaf else leaf
    short = [name for name in keys if name.rpartition(".")[2] == initials]
    if same := same or [name for name in short if name.rpartition(".")[0] == section] or short:
        return same

    def alike(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one, other).ratio()

    def plausible(name: str) -> bool:
        above, _, last = name.rpartition(".")
        if not known_section and alike(key, name) >= ALIKE:
            return True
        return alike(leaf, last) >= (ALIKE if above == section else ALIKE_ELSEWHERE)

    level = sorted(name for name in sections if name.count(".") == key.count("."))
    similar = [name for name in (*keys, *level) if plausible(name)]
    return sorted(similar, key=lambda name: -alike(key, name) - alike(leaf, name.rpartition(".")[2]))[:1]
