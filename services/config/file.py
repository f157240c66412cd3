"""Config files: YAML in, dotted overrides, one-line errors.

The tree itself is services/config/tree.py. Light: pydantic and yaml only.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.composer import ComposerError

from services.config.env import SERVER_KEYS
from services.config.keys import (
    LIST,
    OPEN_SECTION,
    check_key,
    check_nested,
    config_keys,
    is_section,
    takes_text,
)
from services.config.refusals import COMMAND_LINE, describe_invalid_value, refusal
from services.config.secrets import masked
from services.config.tree import Config
from services.errors import UserError, raise_together
from services.files import read_bounded, write_whole

FORMAT = 1
MORE, WEIGHT = LIST.removeprefix("env."), "env.weight"
NOTHING = ("", "null", "~")
"""Values on the command line that leave a text empty."""
CONFIG_BYTES = 1 << 20
"""Largest config file that is read. Ours have a few kilobytes."""
MISTAKES = 50
"""Most unknown keys that one error names. The nearest keys of each are searched for."""
DIGITS = 1000
"""Most digits of a whole number. Python writes none of more than 4,300 digits, not even in an error."""
VALUES = 100_000
"""Most values that a YAML text may hold, each alias counted as all that it stands for. Our configs have a few hundred.
Nested aliases make any number of values from a few hundred bytes."""

Tree = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """Reads numbers as YAML 1.2 does, and refuses a key that is given twice.

    YAML 1.1 reads 3e-4 as a text, 010 as 8 and 1:30 as 90. A text of more than VALUES values is refused while it is
    parsed, before any of them is made.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[yaml.Node, int] = {}
        """Values below each complete node."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark, alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if alias and node not in self._sizes:
            raise ComposerError(None, None, "an alias stands for what it is in", mark)
        if not alias:
            below = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else \
                node.value if isinstance(node, yaml.SequenceNode) else []
            self._sizes[node] = 1 + sum(self._sizes[part] for part in below)
        if self._sizes[node] > VALUES:
            raise ComposerError(None, None, f"it holds more than {VALUES} values", mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[object] = set()
        for part, _ in node.value:
            key = self.construct_object(part, deep=True)
            if isinstance(key, Hashable):  # super() refuses others
                if key in keys:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key} is given twice", node.start_mark)
                keys.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > DIGITS:
            raise yaml.constructor.ConstructorError(None, None, f"a number has more than {DIGITS} digits",
                                                    node.start_mark)
        try:
            return int(node.value, 10)
        except ValueError:
            return node.value if ":" in node.value else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        return node.value if ":" in node.value else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))


def find_config(path: Path | str, shipped_in: Path | None = None) -> Path:
    """Returns the file `path`, or the config of that name in `shipped_in`, with or without its folder and `.yaml`.

    Raises UserError if there is none. It names the most similar shipped config, or the three that come nearest.
    """
    if Path(path).is_file():
        return Path(path)
    if (inside := Path(path) / "config.yaml").is_file():
        raise UserError(f"{path} is a folder, not a config file", f"give {inside}, or continue a run by --resume")
    if shipped_in is None:
        raise UserError(f"there is no config file {path}", "give the path of a YAML file")
    wanted = str(path).removesuffix(".yaml")
    shipped = {file.relative_to(shipped_in).as_posix().removesuffix(".yaml"): file
               for file in sorted(shipped_in.rglob("*.yaml"))}
    if config := next((file for name, file in shipped.items() if wanted in (name, file.stem)), None):
        return config
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder, not a config file", "give the path of a YAML file")
    nearby = [str(file) for file in Path(path).parent.glob("*.y*ml")]
    near = difflib.get_close_matches(wanted, [*shipped, *(file.stem for file in shipped.values()), *nearby], n=1)
    some = difflib.get_close_matches(Path(wanted).name, [*shipped], n=3, cutoff=0.0)
    names = f"give the path of a YAML file, or a shipped name such as {', '.join(some)}" if some else \
        "give the path of a YAML file"
    raise UserError(f"there is no config file {path}", f"did you mean {near[0]}?" if near else names)


def load_config(path: Path | str, overrides: Sequence[str] = (), *, shipped_in: Path | None = None) -> Config:
    """Reads `path`. Its values replace those of its `base`; overrides such as `learner.lr=3e-4` replace both.

    A bare name such as `alfworld-tiny` is looked up in `shipped_in`, for `path` and for `base` alike.

    Raises UserError for a missing file or bad YAML, or with all unknown keys (naming the nearest) and bad values.
    """
    file = find_config(path, shipped_in)
    mistakes: list[UserError] = []
    tree = _read(file, shipped_in, mistakes)
    return _validated(tree, overrides, mistakes, file)


def default_config(overrides: Sequence[str] = ()) -> Config:
    """Returns the defaults, changed by `overrides`, for commands that need no run. Raises UserError as load_config."""
    return _validated({"name": "default", "steps": 1}, overrides, [], COMMAND_LINE)


def _validated(tree: Tree, overrides: Sequence[str], mistakes: list[UserError], file: Path | str) -> Config:
    """Returns the config of a tree and its overrides. Raises UserError with all their mistakes, and those before."""
    _lay(tree, overrides, mistakes)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        mistakes.append(refusal(error, lambda key: COMMAND_LINE if _typed(key, overrides) else file))
        raise_together(mistakes)
        raise
    raise_together(mistakes)
    return config


def lay_over(config: Config, values: Mapping[str, object]) -> Config:
    """Returns `config` with `values` at their dotted keys. Raises UserError for an unknown key or a bad value."""
    tree = config.model_dump()  # not mode="json", which drops the password of redis.url
    for key, value in values.items():
        check_key(key, "the values that replace those of the config")
        if config.env.more:
            _check_for_all(key)
        _set(tree, key, value)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise refusal(error, config.run_dir) from None


def dump_config(config: Config, path: Path, *, include: dict[str, Any] | None = None) -> None:
    """Writes the resolved config atomically. load_config reads it back as an equal config.

    `include`: the sections and keys to write, as pydantic takes them. None: all.
    """
    tree = config.model_dump(mode="json", include=include)
    if config.env.more:
        first = tree["env"]
        tree["env"] = [first, *({key: value for key, value in one.items() if key not in SERVER_KEYS}
                                for one in first.pop(MORE))]
    text = yaml.safe_dump({"format": FORMAT, **tree}, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def flatten(config: Config) -> dict[str, Any]:
    """Returns a dict from dotted key to JSON value."""
    tree = config.model_dump(mode="json")
    options = [f"{OPEN_SECTION}{name}" for name in config.learner.credit.model_extra or {}]
    keys = [key for key in config_keys() if config.env.more or key != WEIGHT]
    return {key: _at(tree, key) for key in (*keys, *([LIST] if config.env.more else ()), *options)}


def as_yaml(value: object) -> str:
    """Returns a value as a user would write it in an override: `0.0003`, `[pick, look]`, `null`."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("\n...\n").strip()


def from_yaml(text: str, named: str) -> Any:
    """Returns the value that a user wrote on the command line. Raises UserError that names it by `named`."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"the value of {named} is not YAML", "quote it") from None


def _at(tree: Tree, key: str) -> Any:
    value: Any = tree
    for part in key.split("."):
        value = value[part]
    return value


def _read(file: Path, shipped_in: Path | None, mistakes: list[UserError], above: tuple[Path, ...] = ()) -> Tree:
    """Returns the settings of a file merged over those of its bases. `above`: the files that have this one as base.

    `mistakes` takes one for each key that the config does not have; the tree is without it."""
    if file in above:
        raise UserError(f"{file} is its own base", "remove `base` from one of these files")
    tree = read_tree(file)
    bases = tree.pop("base", [])
    entries = _take_list(tree, file)
    for one in (tree, *({"env": entry} for entry in entries or ())):
        _take_unknown_keys(one, file, mistakes)
    if entries is not None:
        tree["env"][MORE] = entries
    merged: Tree = {}
    for base in bases if isinstance(bases, list) else [bases]:
        if not isinstance(base, str):
            raise UserError(f"{file}: base {describe_invalid_value(base)}", "name a config file, or remove `base`")
        further = _read(_find_base(file, base, shipped_in), shipped_in, mistakes, (*above, file))
        _make_way_for_list(merged, further)
        merged = _merge(merged, further)
    _make_way(merged, tree)
    return _merge(merged, tree)


def _take_list(tree: Tree, file: Path) -> list[Tree] | None:
    """Puts the first entry of a list of environments in place of the list, and returns the others; None for no list."""
    entries = tree.get("env")
    if not isinstance(entries, list):
        return None
    if not entries or not all(isinstance(one, dict) and "name" in one for one in entries):
        raise UserError(f"the list env in {file} has {_wrong_entry(entries)}",
                        "write each environment as {name: NAME, weight: 1, prompt: PROMPT, ...}")
    tree["env"], *others = entries
    return others


def _wrong_entry(entries: list[Any]) -> str:
    if not entries:
        return "no entries"
    number, entry = next((number, one) for number, one in enumerate(entries)
                         if not (isinstance(one, dict) and "name" in one))
    return f"{entry!r:.60} as entry {number}" + (", without a name" if isinstance(entry, dict) else "")


def _check_for_all(key: str) -> None:
    """Raises UserError for a key of `env` of which a list of environments has one in each entry."""
    section, _, rest = key.partition(".")
    if section == "env" and rest.partition(".")[0] not in SERVER_KEYS:
        raise UserError(f"{key} is given for all of a list of environments",
                        "set it in an entry of the list in the config file; only keys of servers, such as env.servers, "
                        "are for all")


def _make_way_for_list(below: Tree, above: Tree) -> None:
    """Takes `env` out of `below` if `above` has a list of environments. Raises UserError if only `below` has one, and
    `above` has keys of `env` that each entry has for itself."""
    envs, base_envs = above.get("env"), below.get("env")
    if not (isinstance(envs, dict) and isinstance(base_envs, dict)):
        return
    if MORE in envs:
        del below["env"]
    elif base_envs.get(MORE):
        for name in envs:
            _check_for_all(f"env.{name}")


def _make_way(below: Tree, above: Tree) -> None:
    """Takes sft.minutes out of `below` if `above` has sft.epochs alone, and the other way round: one of them counts.
    Does the same with `env` and a list of environments."""
    _make_way_for_list(below, above)
    mine, base = above.get("sft"), below.get("sft")
    if isinstance(mine, dict) and isinstance(base, dict):
        for one, other in (("minutes", "epochs"), ("epochs", "minutes")):
            if mine.get(one) is not None and other not in mine:
                base.pop(other, None)


def _find_base(file: Path, base: str, shipped_in: Path | None) -> Path:
    """Returns the base config: next to `file` if it is there, else a shipped one."""
    nearby = [path for path in (file.parent / base, file.parent / f"{base}.yaml") if path.is_file()]
    return nearby[0] if nearby else find_config(base, shipped_in)


def _merge(below: Tree, above: Tree) -> Tree:
    """Merges sections key by key; every other value of `above` replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        previous = merged.get(key)
        merged[key] = _merge(previous, value) if isinstance(previous, dict) and isinstance(value, dict) else value
    return merged


def read_tree(file: Path) -> Tree:
    """Returns the settings of one YAML file, without those of its base. Raises UserError if it holds none."""
    try:
        text = read_bounded(file, CONFIG_BYTES).decode()
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is not YAML: {_problem(error)}", "correct the file") from None
    if not isinstance(tree, dict):
        raise UserError(f"{file} holds no settings", "give it lines such as `name: my-run`")
    version = tree.pop("format", FORMAT)
    if version != FORMAT:
        raise UserError(f"{file} has format {version}", f"use a gagpo that reads it: this one reads format {FORMAT}")
    return tree


def _problem(error: Exception) -> str:
    """Returns the reason for which a file is not YAML, with its line if the reader knows it."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _lay(tree: Tree, overrides: Sequence[str], mistakes: list[UserError]) -> None:
    """Replaces values of the tree by those of `overrides`. `mistakes` takes one for each unknown key."""
    values: list[tuple[str, Any]] = []
    for override in overrides:
        key, text = _split_override(override)
        try:
            check_key(key, COMMAND_LINE)
        except UserError as error:
            mistakes.append(error)
        else:
            values.append((key, _override_value(override, key, text)))
    given: Tree = {}
    for key, value in values:
        _set(given, key, value)
    _make_way(tree, given)
    for key, value in values:
        _set(tree, key, value)


def _split_override(override: str) -> tuple[str, str]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        form = f"{override}=VALUE, without spaces" if override in config_keys() else "section.key=value"
        raise UserError(f"{masked(override)!r} is not an override", f"write it as {form}")
    return key, text


def _override_value(override: str, key: str, text: str) -> Any:
    if takes_text(key) and not text.startswith(("'", '"')):
        return None if text in NOTHING else text  # name=2026, model.revision=12345e7 and texts with `: ` or ` #`
    value = from_yaml(text, repr(masked(override)))
    if isinstance(value, dict) and is_section(key):
        names = [str(name).partition(":")[0] for name in value] or ["KEY"]
        raise UserError(f"{key} is a section, and {override!r} would replace all of it",
                        f"give its keys one by one: {' '.join(f'{key}.{name}=VALUE' for name in names)}")
    return value


def _typed(key: str, overrides: Sequence[str]) -> bool:
    """Returns whether an override gave the value of `key`, or one in the section that it names."""
    keys = [override.partition("=")[0] for override in overrides]
    return any(f"{given}.".startswith(f"{key}.") or f"{key}.".startswith(f"{given}.") for given in keys)


def _set(tree: Tree, key: str, value: object) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        below = tree.setdefault(section, {})
        if not isinstance(below, dict):
            raise UserError(f"{section} is {below!r} in the config file", "make it a section with keys of its own")
        tree = below
    tree[leaf] = value


def _take_unknown_keys(tree: Tree, where: Path | str, mistakes: list[UserError], prefix: str = "") -> None:
    """Deletes the keys that the config does not have from the tree, with a mistake for each."""
    for name, value in list(tree.items()):
        key = f"{prefix}{name}"
        try:
            check_nested(str(name), prefix, where)
        except UserError as error:
            mistakes.append(error)
            del tree[name]
            if len(mistakes) == MISTAKES:
                raise_together(mistakes)
            continue
        if isinstance(value, dict) and is_section(key):  # the value of a key may be a mapping with names of its own
            _take_unknown_keys(value, where, mistakes, f"{key}.")
