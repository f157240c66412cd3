"""The page of config keys, from the sections in services/config/: their fields, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deploy.reference.markdown import code, document, table
from envservice.registry import BUILT_IN
from learner.credit.registry import ESTIMATORS, OptionTable, option_tables
from learner.credit.state_keys import KEYS
from services.amounts import rounded
from services.config.credit import CreditSection
from services.config.tree import Config

INTRODUCTION = """Every key of a config, by section. Keys are set in a YAML file or on the command line, as in \
`learner.lr=3e-4`; [Choose and change a config](../tasks/config.md) shows both. A key that does \
not exist is an error that names a similar one, or those that there are.

A default in *italics* is not a value that you can write: *required* means that the key must be given, *none* that \
nothing is set (in YAML: `null`)."""
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
OPEN = {"env.name": (*BUILT_IN, "module:attribute"), "learner.credit.estimator": (*ESTIMATORS, "module:Name"),
        "learner.credit.state_key": (*KEYS, "module:Name")}
"""Values of keys whose names are registered in code and not listed in the type of the field."""
PLAIN = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text", "Path": "path"}


def page() -> str:
    """Returns the page."""
    blocks = [block for name, section in sections() for block in _section(name, section)]
    blocks += [block for options in option_tables() for block in _options(options)]
    return document("Configuration", INTRODUCTION, *blocks)


def sections(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yields all sections with their dotted names, first the whole config with the empty name."""
    yield prefix, section
    for name, field in section.model_fields.items():
        if (inner := _subsection(field)) is not None:
            yield from sections(inner, f"{prefix}.{name}" if prefix else name)


def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Returns the docstring below each field of `section` and its bases, which Python does not keep at run time."""
    found: dict[str, str] = {}
    for model in reversed(section.__mro__):
        if issubclass(model, BaseModel) and model is not BaseModel:
            found |= _own_docstrings(model)
    return found


def _own_docstrings(section: type[BaseModel]) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(sys.modules[section.__module__]))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == section.__name__)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)}


def _section(name: str, section: type[BaseModel]) -> Iterator[str]:
    texts = docstrings(section)
    keys = {f"{name}.{key}" if name else key: (texts.get(key, ""), field)
            for key, field in section.model_fields.items() if _subsection(field) is None}
    rows = [[code(key), _default(field), _values(key, field), text] for key, (text, field) in keys.items()]
    yield f"## {name or 'The run'}"
    yield inspect.cleandoc(section.__doc__ or "")
    yield table(["key", "default", "values", "meaning"], rows)


def _options(options: OptionTable) -> Iterator[str]:
    """Yields the table of the keys of `learner.credit` that an estimator or a state key adds."""
    title, introduction, model = options
    texts = docstrings(model)
    rows = [[code(f"learner.credit.{key}"), _default(field), _values(key, field), texts.get(key, "")]
            for key, field in model.model_fields.items() if key not in CreditSection.model_fields]
    if rows:
        yield f"## learner.credit: {title}"
        yield introduction
        yield table(["key", "default", "values", "meaning"], rows)


def _subsection(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "*none*"
    if isinstance(value, tuple):
        everything = len(value) > 1 and value == _choices(field.annotation)
        return "*all*" if everything else code(f"[{', '.join(map(str, value))}]")
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _values(key: str, field: FieldInfo) -> str:
    """Returns the type in words, with the bounds that pydantic checks."""
    if key in OPEN:
        return ", ".join(map(code, OPEN[key]))
    bounds = [f"{sign} {rounded(value, 6)}" for one in field.metadata for name, sign in BOUNDS.items()
              if (value := getattr(one, name, None)) is not None]
    return " ".join((_words(field.annotation), ", ".join(bounds))).strip()


def _words(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _words(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return ", ".join(code(str(value)) for value in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_words(one) for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is tuple:
        inner = [one for one in get_args(kind) if one is not Ellipsis]
        return f"list of {_words(inner[0])}" if Ellipsis in get_args(kind) else f"list of {len(inner)} numbers"
    name: str = kind.__name__
    return PLAIN.get(name, name)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Returns all values that the elements of a list may have, if the type lists them."""
    inner = get_args(kind)[:1]
    return get_args(inner[0]) if inner and get_origin(inner[0]) is Literal else ()
