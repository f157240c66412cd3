"""The page of the environment servers' HTTP API, from the frozen proto/environment.openapi.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.reference.markdown import code, document, table
from envservice.wire import problems

FROZEN = Path(__file__).parents[2] / "proto" / "environment.openapi.json"
INTRODUCTION = """The HTTP API of environment servers, from proto/environment.openapi.json; \
[Environments](../environments.md) explains how sessions are rebuilt. It is the same for every environment.

If a server has a token (`GAGPO_ENV_TOKEN`), every route except `/healthz` needs the header \
`Authorization: Bearer TOKEN`. A batch is a list, and its answer is a list of the same length: an element that fails \
has a `ProblemBody` in its place."""

Json = dict[str, Any]


def page() -> str:
    """Returns the page."""
    api = json.loads(FROZEN.read_text(encoding="utf-8"))
    routes = [block for path, verbs in api["paths"].items() for verb, route in verbs.items()
              for block in _route(f"{verb.upper()} {path}", route)]
    bodies = [block for name, schema in api["components"]["schemas"].items() for block in _body(name, schema)]
    return document("HTTP API", INTRODUCTION, *routes, "## Errors", _errors(), "## Bodies", *bodies)


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
