"""The pages of docs/reference/: commands, config keys, HTTP API and metrics, each made from the code itself."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from deploy.cli import build_parser
from deploy.reference import agents_api
from deploy.reference.markdown import code, document, table
from envservice.registry import BUILT_IN
from envservice.wire import problems
from learner.credit.registry import ESTIMATORS, OptionTable, option_tables
from learner.credit.state_keys import KEYS
from services.amounts import rounded
from services.config.credit import CreditSection
from services.config.keys import LIST
from services.config.tree import Config
from services.telemetry.metrics_file import METRIC_TEXTS
from services.telemetry.names import CATALOGUE, Bound

COMMANDS_INTRODUCTION = """Every command of `gagpo`, as `gagpo COMMAND --help` shows it.

All commands end with the same exit codes: 0 success, 1 a fault or a failed check, 2 a mistake of the user, \
130 Ctrl-C (0 for a server or a view, which runs until then), 143 SIGTERM. \
An error is one line on stderr: what is wrong, and how to fix it."""


def commands_page() -> str:
    """Returns the page."""
    return document("Commands", COMMANDS_INTRODUCTION, *(
        block for name, command in build_parser().commands.items() for block in _command(f"gagpo {name}", command)))


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    if complete := parser.get_default("complete"):
        complete(parser)
    yield f"## {name}"
    yield " ".join((parser.description or "").split())
    documented = [action for action in parser._actions if action.dest != "help" and action.help != argparse.SUPPRESS]
    if documented:  # argparse has no public list of a parser's arguments
        yield table(["argument", "meaning"], [[_flags(action), _meaning(action)] for action in documented])
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```"


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


CONFIGURATION_INTRODUCTION = """Every key of a config, by section. Keys are set in a YAML file or on the command \
line, as in `learner.lr=3e-4`; [Choose and change a config](../tasks/config.md) shows both. A key that does \
not exist is an error that names a similar one, or those that there are.

A default in *italics* is not a value that you can write: *required* means that the key must be given, *none* that \
nothing is set (in YAML: `null`)."""
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
OPEN = {"env.name": (*BUILT_IN, "module:attribute"), "learner.credit.estimator": (*ESTIMATORS, "module:Name"),
        "learner.credit.state_key": (*KEYS, "module:Name")}
"""Values of keys whose names are registered in code and not listed in the type of the field."""
PLAIN = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text", "Path": "path"}


def configuration_page() -> str:
    """Returns the page."""
    blocks = [block for name, section in sections() for block in _section(name, section)]
    blocks += [block for options in option_tables() for block in _options(options)]
    return document("Configuration", CONFIGURATION_INTRODUCTION, *blocks)


def sections(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yields all sections with their dotted names, first the entire config with the empty name."""
    yield prefix, section
    for name, field in section.model_fields.items():
        if (inner := _subsection(field)) is not None:
            yield from sections(inner, f"{prefix}.{name}" if prefix else name)


def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Returns the docstring below each field of `section` and its bases, which Python does not keep at run time."""
    texts: dict[str, str] = {}
    for model in reversed(section.__mro__):
        if issubclass(model, BaseModel) and model is not BaseModel:
            texts |= _own_docstrings(model)
    return texts


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
    keys.pop(LIST, None)
    rows = [[code(key), _default(field), _values(key, field), text] for key, (text, field) in keys.items()]
    yield f"## {name or 'The run'}"
    yield inspect.cleandoc(section.__doc__ or "")
    yield table(["key", "default", "values", "meaning"], rows)


def _options(options: OptionTable) -> Iterator[str]:
    """Yields the table of the keys of `learner.credit` that an estimator or a state key adds, and of those of which its
    default is another."""
    title, introduction, model = options
    texts, shared = docstrings(model), CreditSection.model_fields
    rows = [[code(f"learner.credit.{key}"), _default(field), _values(key, field), texts.get(key, "")]
            for key, field in model.model_fields.items() if key not in shared or field.default != shared[key].default]
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


FROZEN = Path(__file__).parents[2] / "proto" / "environment.openapi.json"
HTTP_API_INTRODUCTION = """The HTTP API of environment servers, from proto/environment.openapi.json; \
[Environments](../environments.md) explains how sessions are rebuilt. It is the same for every environment.

If a server has a token (`GAGPO_ENV_TOKEN`), every route except `/healthz` needs the header \
`Authorization: Bearer TOKEN`. A batch is a list, and its answer is a list of the same length: an element that fails \
has a `ProblemBody` in its place."""

Json = dict[str, Any]


def http_api_page() -> str:
    """Returns the page."""
    api = json.loads(FROZEN.read_text(encoding="utf-8"))
    routes = [block for path, verbs in api["paths"].items() for verb, route in verbs.items()
              for block in _route(f"{verb.upper()} {path}", route)]
    bodies = [block for name, schema in api["components"]["schemas"].items() for block in _body(name, schema)]
    return document("HTTP API", HTTP_API_INTRODUCTION, *routes, "## Errors", _errors(), "## Bodies", *bodies)


def _errors() -> str:
    lines = re.findall(r"^    (\w+) +(\d+) *(.*)$", problems.__doc__ or "", re.MULTILINE)
    return table(["type", "status", "meaning"], [[code(kind), status, meaning] for kind, status, meaning in lines])


def _route(title: str, route: Json) -> Iterator[str]:
    yield f"## {title}"
    yield route.get("description", "")
    if "requestBody" in route:
        schema = route["requestBody"]["content"]["application/json"]["schema"]
        element = schema.get("items", schema)
        yield f"The request is {_kind(schema)}, at most {schema['maxItems']} elements, each with these fields:" \
            if "maxItems" in schema else f"The request is {_kind(schema)}:"
        yield _fields(element)
    yield table(["status", "body"], [[status, _answer(answer)] for status, answer in route["responses"].items()])


def _answer(answer: Json) -> str:
    content = answer.get("content", {})
    return _kind(content["application/json"]["schema"]) if "application/json" in content else "text"


def _body(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}"
    if "description" in schema:
        yield schema["description"]
    yield _fields(schema)


def _fields(schema: Json) -> str:
    required = schema.get("required", [])
    rows = [[code(name), _kind(field), "yes" if name in required else "no", field.get("description", "")]
            for name, field in schema.get("properties", {}).items()]
    return table(["field", "type", "required", "meaning"], rows)


def _kind(schema: Json) -> str:
    """Returns a JSON schema in words."""
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(code(str(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"a list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object" and "additionalProperties" in schema and schema["additionalProperties"]:
        return f"an object of {_kind(schema['additionalProperties'])} values"
    return schema.get("title", "object") if schema.get("type") == "object" else schema.get("type", "anything")


METRICS_INTRODUCTION = """Every metric that gagpo exports, as services/telemetry/names.py declares it, \
and every [key of metrics.jsonl](#keys-of-metricsjsonl). \
[Watch runs](../operate/metrics.md) says where they are served.

Counters start at 0 in each process, as Prometheus expects. A gauge that has not been set yet has no series. \
Rollout workers, the learner and the controller add the label `worker`."""

KEYS_INTRODUCTION = """A run's folder has a line of metrics.jsonl for each learner step, with these keys and `format`, \
as services/telemetry/metrics_file.py lists them. A number that does not exist or is not finite is null. \
Under `learner.task_sampling: contrast` it also has [columns by task type](../algorithms.md#sampling-by-task-type). \
[My run does not learn](../operate/does-not-learn.md) says which to look at first."""


def metrics_page() -> str:
    """Returns the page."""
    rows = [[code(one.name), one.kind, ", ".join(one.roles), _labels(one.labels), one.help]
            for one in CATALOGUE.values()]
    keys = [[code(key), text] for key, text in METRIC_TEXTS.items()]
    return document("Metrics", METRICS_INTRODUCTION, table(["metric", "type", "from", "labels", "meaning"], rows),
                    "## Keys of metrics.jsonl", KEYS_INTRODUCTION, table(["key", "meaning"], keys))


def _labels(labels: Mapping[str, Bound]) -> str:
    return "; ".join(f"{name}: at most {bound} values" if isinstance(bound, int) else f"{name}: {', '.join(bound)}"
                     for name, bound in labels.items())


FOLDER = Path(__file__).parents[2] / "docs" / "reference"


def pages() -> dict[str, str]:
    """Returns the text of each page by its file name."""
    return {
        "agents-api.md": agents_api.page(),
        "commands.md": commands_page(),
        "configuration.md": configuration_page(),
        "http-api.md": http_api_page(),
        "metrics.md": metrics_page(),
    }
