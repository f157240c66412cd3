"""Writes the frozen contracts of proto/: `python -m lab.contracts`. tests/architecture compares both with the code.

records.schema.json has the records of the store. Tickets, turns and episodes are msgpack (episodes compressed with
zstd); manifests and the version are JSON. The fields are the same. environment.openapi.json is the API of environment
servers, the same for every environment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from envservice.registry import open_environment
from envservice.server.app import Settings, create_app
from services.config.tree import EnvSection
from services.records import Drop, Episode, Manifest, PlayedTurn, Ticket, Version

RECORDS = (Ticket, Episode, Manifest, Drop, Version, PlayedTurn)
PROTO = Path(__file__).parents[1] / "proto"
RECORDS_FILE, API_FILE = PROTO / "records.schema.json", PROTO / "environment.openapi.json"


def _array(kind: type) -> dict[str, Any]:
    if kind is not np.ndarray:
        raise NotImplementedError(f"no schema for {kind.__name__}")
    return {
        "type": "array",
        "items": {"type": "number"},
        "description": "msgpack extension 1: `<numpy dtype>:<sizes, comma-separated>:`, then the raw bytes",
    }


def record_schemas() -> str:
    """Returns the text of records.schema.json."""
    _, components = msgspec.json.schema_components(RECORDS, schema_hook=_array, ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gagpo records",
        "oneOf": [{"$ref": f"#/$defs/{record.__name__}"} for record in RECORDS],
        "$defs": components,
    }
    return json.dumps(schema, indent=2) + "\n"


def api_document() -> str:
    """Returns the text of environment.openapi.json."""
    app = create_app(open_environment(EnvSection()), Settings(token="-"))  # noqa: S106 - never served
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    RECORDS_FILE.write_text(record_schemas(), encoding="utf-8")
    API_FILE.write_text(api_document(), encoding="utf-8")
